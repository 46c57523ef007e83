"""Summaries of any task: means over runs and folds, patient bootstrap, paired differences, macro mean over targets."""

import numpy as np
import pytest

from dasmil.errors import InputError
from dasmil.stats import (
    FollowUp,
    brier_at,
    class_set,
    difference_of_sets,
    harrell,
    integrated,
    kaplan_meier_brier,
    mean_interval,
    mean_over_sets,
    numeric_scores,
    numeric_set,
    score,
    summarise,
    summarise_set,
    summarise_targets,
    survival_set,
)


def follow_up(n=60, seed=0):
    rng = np.random.default_rng(seed)
    risk = rng.normal(0, 1, n)
    event, censored = rng.exponential(np.exp(-risk)), rng.exponential(2, n)
    return FollowUp(np.minimum(event, censored), event <= censored), risk, rng


def test_survival_summary_over_runs():
    follow, risk, rng = follow_up()
    risks = [risk, risk + rng.normal(0, 1, len(risk))]
    found = summarise_set(survival_set(follow, risks, horizons=[0.5]), resamples=100)
    each = [harrell(follow, r)[0] for r in risks]
    assert [run["c_index"] for run in found["per_seed"]] == pytest.approx(each)
    assert found["mean"]["c_index"] == pytest.approx(np.mean(each))
    assert found["std"]["c_index"] == pytest.approx(np.std(each, ddof=1))
    assert found["ensemble"]["c_index"] == pytest.approx(harrell(follow, np.mean(risks, axis=0))[0])
    low, high = found["interval"]["c_index"]
    assert low < found["mean"]["c_index"] < high
    assert set(found["mean"]) == {"c_index", "c_index_uno", "auroc_at_0.5"}
    assert found["fewest"] == follow.events.sum()


def test_survival_interval_equals_explicit_resampling_of_patients():
    """Every patient has two bags with one follow-up: the interval is that of patients, wider than that of bags."""
    follow, risk, rng = follow_up(n=40, seed=2)
    twice = np.repeat(np.arange(40), 2)
    risk = risk[twice] + rng.normal(0, 0.3, 80)
    follow, patients = follow[twice], [f"p{k}" for k in twice]
    found = summarise_set(survival_set(follow, [risk], patients), resamples=600)
    draws = []
    events = np.flatnonzero(follow.events[::2])
    others = np.flatnonzero(~follow.events[::2])
    for _ in range(600):
        drawn = np.concatenate([rng.choice(events, len(events)), rng.choice(others, len(others))])
        rows = np.concatenate([2 * drawn, 2 * drawn + 1])
        draws.append(harrell(follow[rows], risk[rows])[0])
    assert found["interval"]["c_index"] == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.02)
    alone = summarise_set(survival_set(follow, [risk]), resamples=600)
    assert np.ptp(alone["interval"]["c_index"]) < 0.85 * np.ptp(found["interval"]["c_index"])
    assert (found["n"], found["patients"], alone["patients"]) == (80, 40, 80)


def test_curves_are_scored_against_kaplan_meier():
    follow, risk, _ = follow_up(n=400, seed=1)
    grid = np.linspace(0.1, 2, 40)
    km = integrated(kaplan_meier_brier(follow, grid), grid)[0]
    true, inverted = (
        integrated(brier_at(follow, np.exp(-np.exp(r)[:, None] * grid), grid), grid)[0] for r in (risk, -risk)
    )
    assert true < 0.9 * km < km < inverted


def test_few_events_have_no_interval():
    follow = FollowUp(np.arange(1.0, 21), np.arange(20) < 3)
    found = summarise_set(survival_set(follow, [np.sin(np.arange(20))]), resamples=50)
    assert np.isnan(found["interval"]["c_index"]).all()
    assert np.isfinite(found["mean"]["c_index"])
    perfect = FollowUp(np.arange(1.0, 21), np.ones(20))
    found = summarise_set(survival_set(perfect, [-np.arange(20.0)]), resamples=50)
    assert found["mean"]["c_index"] == 1
    assert np.isnan(found["interval"]["c_index"]).all()  # all draws agree: the bootstrap cannot tell how sure that is


def test_classes_have_the_figures_of_summarise():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 90)
    runs = [np.clip(0.5 + 0.2 * (y - 0.5) + rng.normal(0, 0.2, 90), 0, 1) for _ in range(2)]
    patients = [f"p{k // 2}" for k in range(90)]
    known = summarise(y, runs, [0.4, 0.6], patients=patients, resamples=200)
    found = summarise_set(class_set(y, runs, [0.4, 0.6], patients), resamples=200)
    assert found["mean"] == pytest.approx(known["mean"])
    for name, ends in known["interval"].items():
        assert found["interval"][name] == pytest.approx(ends, nan_ok=True)
    folds = [(y[:45], [r[:45] for r in runs], [0.5, 0.5], patients[:45]),
             (y[45:], [r[45:] for r in runs], [0.5, 0.5], patients[45:])]  # fmt: skip
    expected = mean_interval(folds, resamples=200)
    spans = mean_over_sets([class_set(*fold) for fold in folds], resamples=200)["interval"]
    for name, ends in expected.items():
        assert spans[name] == pytest.approx(ends, nan_ok=True)


def test_mean_over_folds_leaves_out_folds_without_events():
    follow, risk, _ = follow_up()
    parts = [np.arange(0, 30), np.arange(30, 60)]
    sets = [survival_set(follow[p], [risk[p]]) for p in parts]
    nobody = survival_set(FollowUp(np.arange(1.0, 6), np.zeros(5)), [np.arange(5.0)])
    found = mean_over_sets([*sets, nobody], resamples=200)
    assert found["mean"]["c_index"] == pytest.approx(np.mean([harrell(follow[p], risk[p])[0] for p in parts]))
    low, high = found["interval"]["c_index"]
    assert low < found["mean"]["c_index"] < high
    only = mean_over_sets([nobody], resamples=20)
    assert np.isnan(only["mean"]["c_index"])
    assert np.isnan(only["interval"]["c_index"]).all()


def test_differences_are_paired():
    follow, risk, rng = follow_up(n=150)
    worse = risk + rng.normal(0, 0.5, 150)
    sides = [survival_set(follow, [r]) for r in (risk, worse)]
    found = difference_of_sets([(sides[0], sides[1])], "c_index", resamples=300)
    assert found["difference"] == pytest.approx(harrell(follow, risk)[0] - harrell(follow, worse)[0])
    single = summarise_set(sides[0], resamples=300)["interval"]["c_index"]
    assert np.ptp(found["interval"]) < np.ptp(single)  # what both get wrong cancels
    same = difference_of_sets([(sides[0], sides[0])], "c_index", resamples=50)
    assert same["difference"] == 0
    with pytest.raises(InputError, match="compare like with like"):
        difference_of_sets([(sides[0], survival_set(follow[::-1], [risk]))], "c_index")


def test_several_targets_and_their_macro_mean():
    rng = np.random.default_rng(1)
    patients = [f"p{k}" for k in range(80)]
    y1, y2, y3 = rng.integers(0, 2, 80), rng.integers(0, 2, 80), rng.normal(0, 1, 80)
    p1, p2 = (np.clip(0.5 + 0.3 * (y - 0.5) + rng.normal(0, 0.2, 80), 0, 1) for y in (y1, y2))
    p3 = y3 + rng.normal(0, 0.5, 80)
    every, half = np.arange(80), np.arange(0, 80, 2)  # every second bag lacks the second target
    targets = {
        "one": (class_set(y1, [p1], [0.5], patients), every),
        "two": (class_set(y2[half], [p2[half]], [0.5], patients[::2]), half),
        "three": (numeric_set(y3, [p3], patients), every),
    }
    found = summarise_targets(targets, patients, resamples=200)
    both = [score(y1, p1)["auroc"], score(y2[half], p2[half])["auroc"]]
    assert found["macro"]["auroc"]["mean"] == pytest.approx(np.mean(both))
    assert found["macro"]["auroc"]["targets"] == 2
    assert found["macro"]["r2"]["mean"] == pytest.approx(numeric_scores(y3, p3)["r2"][0])
    assert found["targets"]["two"]["n"] == 40
    low, high = found["macro"]["auroc"]["interval"]
    assert low < np.mean(both) < high
    widths = [np.ptp(found["targets"][name]["interval"]["auroc"]) for name in ("one", "two")]
    assert high - low < max(widths)  # a mean of two is surer than the rarer one alone

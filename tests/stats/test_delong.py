"""DeLong's covariance by patient, non-inferiority, weighted kappa, subgroups and sample sizes, by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score, roc_auc_score

from dasmil.errors import InputError
from dasmil.stats.agreement import by_patient, kappa, kappa_interval
from dasmil.stats.concordance import harrell
from dasmil.stats.delong import aurocs, compare_aurocs, heterogeneity
from dasmil.stats.follow_up import FollowUp
from dasmil.stats.sample_size import auroc_study, auroc_width, c_index_width
from dasmil.stats.subgroups import Subgroups, class_subgroups, column_of, groups_of, survival_subgroups


def cohort(rng, patients, *, gain=1.2, slides=3):
    """Scores of two models; the slides of a patient share label and most of their noise."""
    y = (rng.random(patients) < 0.4).astype(int)
    own = np.repeat(np.arange(patients), rng.integers(1, slides + 1, patients))
    base = gain * y + rng.normal(size=patients)
    first = base[own] + 0.3 * rng.normal(size=len(own))
    second = (0.7 * base + 0.7 * rng.normal(size=patients))[own] + 0.3 * rng.normal(size=len(own))
    return y[own], first, second, [str(i) for i in own]


def brute_covariance(y, scores):
    """DeLong's covariance, pair by pair, for independent bags."""
    kernel = [np.array([[(a > b) + 0.5 * (a == b) for b in s[y == 0]] for a in s[y == 1]]) for s in scores]
    rows, columns = [k.mean(1) for k in kernel], [k.mean(0) for k in kernel]
    return np.cov(rows) / len(rows[0]) + np.cov(columns) / len(columns[0])


def test_single_slides_are_delong_and_values_are_sklearns() -> None:
    y, first, second, _ = cohort(np.random.default_rng(0), 50, slides=1)
    second = np.round(second)  # ties
    found = aurocs(y, [first, second])
    assert found.values == pytest.approx([roc_auc_score(y, first), roc_auc_score(y, second)])
    assert found.covariance == pytest.approx(brute_covariance(y, [first, second]))


def test_intervals_by_patient_hold_the_truth_where_slides_repeat() -> None:
    rng = np.random.default_rng(1)
    big = cohort(np.random.default_rng(2), 60_000)
    truth = aurocs(*_scores(big)).values
    gap, one, naive = [], [], []
    for _ in range(400):
        y, a, b, patients = cohort(rng, 80)
        found = compare_aurocs(y, a, b, patients)
        gap.append(found.low <= truth[0] - truth[1] <= found.high)
        for hits, owners in ((one, patients), (naive, None)):
            alone = aurocs(y, [a], owners)
            hits.append(abs(alone.values[0] - truth[0]) <= 1.96 * math.sqrt(alone.covariance[0, 0]))
    assert 0.915 <= np.mean(gap) <= 0.975
    assert 0.91 <= np.mean(one) <= 0.975
    assert np.mean(naive) < 0.88, "slides counted as patients are too sure"


def _scores(bags):
    y, a, b, patients = bags
    return y, [a, b], patients


def test_non_inferiority_and_what_cannot_be_compared() -> None:
    y, first, second, patients = cohort(np.random.default_rng(3), 300)
    found = compare_aurocs(y, first, second, patients, margin=0.05)
    assert found.difference > 0.03
    assert found.non_inferior
    assert found.inferior_p is not None
    assert found.inferior_p < 0.001
    assert compare_aurocs(y, second, first, patients, margin=0.02).non_inferior is False
    assert compare_aurocs(y, first, first, patients, margin=0.01).p == 1
    with pytest.raises(InputError, match="margin is 5"):
        compare_aurocs(y, first, second, margin=5)
    with pytest.raises(InputError, match="one class"):
        aurocs([1, 1], [[0.1, 0.2]])


def test_kappa_is_sklearns_under_weights() -> None:
    rng = np.random.default_rng(4)
    a = rng.integers(0, 4, 80)
    b = np.clip(a + rng.integers(-1, 2, 80), 0, 3)
    w = rng.integers(0, 3, (2, 80)).astype(float)
    for power, name in ((2, "quadratic"), (1, "linear"), (0, None)):
        expected = [cohen_kappa_score(a, b, weights=name, sample_weight=row) for row in w]
        assert kappa(a, b, 4, w, power=power) == pytest.approx(expected)
    value, low, high = kappa_interval(a, b, 4, resamples=200)
    assert low < value < high
    assert math.isnan(kappa_interval([1] * 9, [1] * 9, 3)[0])


def test_bags_become_patients_and_mixed_ones_are_counted() -> None:
    found = by_patient([1, 1, 0, 0, 1], [0.2, 0.6, 0.1, 0.3, 0.9], ["a", "a", "b", "c", "c"])
    assert found.patients == ["a", "b"]
    assert found.probabilities == pytest.approx([0.4, 0.1])
    assert found.labels.tolist() == [1, 0]
    assert found.mixed == 1


def test_groups_from_cells() -> None:
    assert column_of("age >= 65") == "age"
    assert groups_of("age>65", ["65", "66", None]) == ["<= 65", "> 65", None]
    with pytest.raises(InputError, match="has 'old', expected numbers"):
        groups_of("age>65", ["old"])
    with pytest.raises(InputError, match="give a cut for a number, for example age>65"):
        groups_of("age", [str(i) for i in range(40)])


def test_subgroup_test_has_its_level_and_finds_a_difference() -> None:
    rng = np.random.default_rng(5)
    p_values = []
    for _ in range(100):
        y, a, _, patients = cohort(rng, 160, slides=2)
        cells = [["x", "y"][int(name) % 2] for name in patients]
        p_values.append(_fast_p(y, a, patients, cells))
    assert np.mean(np.array(p_values) < 0.05) <= 0.14
    y, a, _, patients = cohort(rng, 300, slides=2)
    cells = ["bad" if int(name) % 3 == 0 else "good" for name in patients]
    a = np.where(np.array(cells) == "bad", rng.normal(size=len(a)), a)
    found = class_subgroups({"site": cells}, y, a, patients)
    assert found.tests[0].p < 0.01
    assert {row.name: row.value for row in found.rows}["bad"] == pytest.approx(0.5, abs=0.12)
    assert Subgroups.from_json(found.as_json()).rows[0] == found.rows[0]


def _fast_p(y, scores, patients, cells):
    own = np.array(cells)
    parts = [aurocs(y[own == c], [scores[own == c]], [p for p, v in zip(patients, own) if v == c]) for c in "xy"]
    return heterogeneity([p.values[0] for p in parts], [p.covariance[0, 0] for p in parts])


def test_small_and_one_sided_subgroups_get_a_sentence() -> None:
    y, a, _, patients = cohort(np.random.default_rng(6), 120, slides=1)
    cells: list[str | None] = ["rare" if i < 6 else "only" if y[i] == 0 and i < 60 else "rest" for i in range(len(y))]
    cells[-1] = None
    found = class_subgroups({"site": cells}, y, a, patients)
    why = {row.name: row.why for row in found.rows}
    assert why["rare"] == "fewer than 10 patients"
    assert "0 patients of class 1, fewer than 4" in why["only"]
    assert why["not known"] == "not a subgroup"
    assert {row.name: row.events for row in found.rows}["rare"] == 0, "a small cell tells nobody's outcome"
    assert "fewer than two subgroups" in found.tests[0].why
    assert math.isnan(found.tests[0].p)


def test_survival_subgroups() -> None:
    rng = np.random.default_rng(7)
    risk = rng.normal(size=150)
    times = rng.exponential(np.exp(-risk))
    follow = FollowUp(times, rng.random(150) < 0.7)
    found = survival_subgroups(
        {"age>50": [str(40 + i % 20) for i in range(150)]}, follow, risk, [str(i) for i in range(150)]
    )
    assert [row.name for row in found.rows] == ["<= 50", "> 50"]
    assert found.overall.value == pytest.approx(float(harrell(follow, risk)[0]))
    assert found.overall.low < found.overall.value < found.overall.high
    assert found.tests[0].p > 0.01


def test_planned_patients_reach_power_and_width() -> None:
    rng = np.random.default_rng(8)
    size = auroc_study(0.75, 0.3)
    gain = math.sqrt(2) * 0.67449  # AUROC of a shift between normal scores: 0.75
    found = 0
    for _ in range(300):
        y = np.r_[np.ones(size.events), np.zeros(size.patients - size.events)].astype(int)
        one = aurocs(y, [gain * y + rng.normal(size=len(y))])
        found += (one.values[0] - 0.5) / math.sqrt(one.covariance[0, 0]) > 1.96
    assert 0.73 <= found / 300 <= 0.88
    width = auroc_width(0.75, 0.3, 0.06)
    y = np.r_[np.ones(width.events), np.zeros(width.patients - width.events)].astype(int)
    seen = [float(aurocs(y, [gain * y + rng.normal(size=len(y))]).values[0]) for _ in range(300)]
    assert 1.96 * np.std(seen) == pytest.approx(0.06, rel=0.12)
    assert auroc_study(0.8, 0.3, against=0.75).patients > 5 * auroc_study(0.8, 0.3).patients
    with pytest.raises(InputError, match=r"AUROC to beat is 0\.9"):
        auroc_study(0.8, 0.3, against=0.9)


def test_planned_width_of_a_c_index_is_about_that_of_simulated_follow_up() -> None:
    rng = np.random.default_rng(9)
    size = c_index_width(0.7, 0.5, 0.06)
    seen = []
    for _ in range(60):
        risk = rng.normal(size=size.patients) * 1.0
        times, ends = rng.exponential(np.exp(-risk)), rng.exponential(1.0, size.patients)
        seen.append(float(harrell(FollowUp(np.minimum(times, ends), times <= ends), risk)[0]))
    assert np.mean(seen) == pytest.approx(0.72, abs=0.04)
    assert 0.03 <= 1.96 * np.std(seen) <= 0.068, "as wide as planned, or narrower"

"""Tasks have no bootstrap of their own: their figures go through that of stats, with the same draws of patients."""

from typing import Any

import numpy as np
import pytest

from dasmil.stats import choose_threshold, interval, probabilities, resampled, summarise, summarise_set
from dasmil.tasks import (
    ClassTarget,
    NumberTarget,
    Told,
    classification,
    mean_over_folds,
    multilabel,
    regression,
    summarise_outputs,
    survival,
    task_sets,
)


def cohort(n: int = 60, seed: int = 0):
    rng = np.random.default_rng(seed)
    values = np.stack([rng.exponential(size=n), rng.random(n) < 0.7], axis=1).astype(float)
    task = survival(times=[0.5]).fitted(values)
    outputs = [rng.normal(size=(n, task.outputs)) - values[:, :1] for _ in range(2)]
    return task, values, outputs, [f"p{i // 2}" for i in range(n)]


def test_the_interval_is_the_middle_of_the_draws_of_patients_and_does_not_change() -> None:
    task, values, outputs, patients = cohort()
    found = summarise_outputs(task, values, outputs, patients, values)
    weights = np.concatenate(list(resampled(task.strata(values), patients, 1000, 0)))
    draws = [task.figures(values, task.said(out), weights, values) for out in outputs]
    together = task.figures(values, task.joined(outputs), weights, values)
    for name, ends in found["interval"].items():
        assert ends == pytest.approx(interval(np.mean([d[name] for d in draws], axis=0)), abs=1e-12)
        assert found["ensemble"]["interval"][name] == pytest.approx(interval(together[name]), abs=1e-12)
    assert found["events"] == int(values[:, 1].sum())
    assert found["mean"]["c_index"] == pytest.approx(np.mean([task.scores(values, o)["c_index"] for o in outputs]))


def test_the_mean_over_folds_draws_patients_within_each() -> None:
    folds = [cohort(30, seed) for seed in range(3)]
    sets = [task_sets(v, [Told(t, t.said(o), v) for o in out], p) for t, v, out, p in folds]
    found = mean_over_folds(sets)
    drawn = []
    for k, (task, values, outputs, patients) in enumerate(folds):
        weights = np.concatenate(list(resampled(task.strata(values), patients, 1000, k)))
        drawn.append(np.mean([task.figures(values, task.said(o), weights, values)["uno"] for o in outputs], axis=0))
    assert found["interval"]["uno"] == pytest.approx(interval(np.nanmean(drawn, axis=0)), abs=1e-12)
    exact = [np.mean([t.figures(v, t.said(o), reference=v)["uno"][0] for o in out]) for t, v, out, _ in folds]
    assert found["mean"]["uno"] == pytest.approx(np.mean(exact))


def flat(value: Any) -> list[float]:
    """All numbers of nested records, in order."""
    if isinstance(value, dict | list):
        return [n for one in (value.values() if isinstance(value, dict) else value) for n in flat(one)]
    return [value]


@pytest.mark.parametrize("classes", [2, 3])
def test_classification_has_the_figures_of_stats(classes: int) -> None:
    rng = np.random.default_rng(classes)
    labels, patients = np.arange(30) % classes, [f"p{i // 2}" for i in range(30)]
    outputs = [rng.normal(size=(30, 1 if classes == 2 else classes)) for _ in range(2)]
    values = labels[:, None].astype(float)
    task = classification().fitted(values).decided(values, outputs)
    p = [probabilities(out[:, 0] if classes == 2 else out, classes) for out in outputs]
    cut = choose_threshold(labels, np.mean(p, axis=0)) if classes == 2 else 0.5
    expected = summarise(labels, p, [cut, cut], patients=patients, ensemble_threshold=cut)
    found = summarise_outputs(task, values, outputs, patients)
    assert list(found) == list(expected)
    for name in expected:
        assert flat(found[name]) == pytest.approx(flat(expected[name]), nan_ok=True), name
    if classes == 2:
        assert cut != 0.5  # else the threshold would not be tested


def test_of_three_patients_with_the_event_there_is_no_interval() -> None:
    task, values, outputs, patients = cohort(40)
    values[6:, 1] = 0
    values[:6, 1] = 1
    found = summarise_outputs(task, values, outputs, patients, values)
    assert found["fewest"] == 3
    assert np.isnan(found["interval"]["c_index"]).all()
    assert np.isfinite(found["mean"]["c_index"])


def test_a_perfect_class_among_several_targets_has_an_honest_interval() -> None:
    rng = np.random.default_rng(0)
    values = np.stack([np.arange(20) % 2, rng.normal(size=20)], axis=1).astype(float)
    task = multilabel([ClassTarget("er", ("neg", "pos")), NumberTarget("ki67")]).fitted(values)
    outputs = np.stack([4 * (values[:, 0] - 0.5), rng.normal(size=20)], axis=1)
    found = summarise_outputs(task, values, [outputs], [f"p{i}" for i in range(20)], None)
    assert found["mean"]["er.auroc"] == 1
    assert found["interval"]["er.auroc"] == pytest.approx([0.78, 1.0], abs=0.03)  # ten against ten patients
    assert next(iter(found["mean"])) == "macro"
    assert found["mean"]["macro"] == pytest.approx((1 + found["mean"]["ki67.r2"]) / 2)
    assert set(found["interval"]) == set(found["mean"]) == set(found["per_seed"][0])


def test_runs_with_their_own_bins_are_scored_by_what_they_share() -> None:
    rng = np.random.default_rng(0)
    _, values, _, patients = cohort()
    tasks = [survival(bins=bins).fitted(values) for bins in (2, 4)]
    told = [Told(t, t.said(rng.normal(size=(60, t.outputs))), values) for t in tasks]
    names = [set(t.figures(values, one.said, reference=values)) for t, one in zip(tasks, told, strict=True)]
    (scored,) = task_sets(values, told, patients).values()
    found = summarise_set(scored, resamples=50)
    assert set(found["mean"]) == names[0] & names[1] < names[1]


def test_a_number_keeps_its_strata() -> None:
    values = np.arange(12.0)[:, None]
    task = regression("x").fitted(values)
    (scored,) = task_sets(values, [Told(task, task.said(values), None)], [str(i) for i in range(12)]).values()
    np.testing.assert_array_equal(scored.strata, [0] * 6 + [1] * 6)

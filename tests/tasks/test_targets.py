"""What targets say and how well: bins of time, standardised numbers, classes, several at once."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from dasmil.errors import DataError, InputError
from dasmil.tasks import (
    ClassTarget,
    NumberTarget,
    TimeTarget,
    classification,
    multilabel,
    regression,
    resolve_task,
    summarise_outputs,
    survival,
    task_from,
)

FOLLOW_UP = np.array([[2.0, 1], [4, 1], [6, 1], [8, 1], [9, 0], [3, 0]])


def test_bins_are_cut_at_the_quantiles_of_event_times_and_end_at_the_latest_time() -> None:
    target = TimeTarget(bins=2).fitted(FOLLOW_UP)
    assert target.edges == (5.0, 9.0)
    assert target.outputs == 2
    assert TimeTarget(method="cox").fitted(FOLLOW_UP).outputs == 1


def test_hazards_become_survival_at_the_ends_of_bins_and_evenly_within() -> None:
    target = TimeTarget(bins=2).fitted(FOLLOW_UP)
    outputs = np.array([[0.0, 1.0], [-2.0, -2.0]])
    said = target.said(outputs)
    first = 1 - expit(outputs[:, 0])
    np.testing.assert_allclose(said["survival_5"], first)
    np.testing.assert_allclose(said["survival_9"], first * (1 - expit(outputs[:, 1])))
    np.testing.assert_allclose(said["risk"], 1 - (said["survival_5"] + said["survival_9"]) / 2)
    halfway = target.survival_at(said, np.array([2.5, 7.0, 100.0]))
    np.testing.assert_allclose(halfway[:, 0], np.sqrt(first))
    np.testing.assert_allclose(halfway[:, 1], np.sqrt(said["survival_5"] * said["survival_9"]))
    np.testing.assert_allclose(halfway[:, 2], said["survival_9"])


def test_a_risk_that_orders_all_events_has_a_c_index_of_one() -> None:
    task = survival(method="cox").fitted(FOLLOW_UP)
    scores = task.scores(FOLLOW_UP, -FOLLOW_UP[:, :1])
    assert scores["c_index"] == 1.0
    assert task.scores(FOLLOW_UP, FOLLOW_UP[:, :1])["c_index"] == 0.0
    assert task.concordance(FOLLOW_UP, np.zeros((6, 1))) == 0.5


def test_a_number_is_said_in_its_own_unit() -> None:
    values = np.array([[10.0], [20.0], [30.0]])
    task = regression("cells", unit="1/mm2").fitted(values)
    spread = values.std()
    np.testing.assert_allclose(task.said(np.array([[0.0], [1.0]]))["cells"], [20.0, 20.0 + spread])
    assert task.scores(values, (values - 20) / spread)["r2"] == pytest.approx(1.0)
    assert task.scores(values, np.zeros((3, 1)))["r2"] == pytest.approx(0.0)


def test_several_targets_have_their_own_outputs_and_missing_values_do_not_count() -> None:
    task = multilabel([ClassTarget("er", ("neg", "pos")), ClassTarget("grade", ("1", "2", "3")), NumberTarget("ki67")])
    values = np.array([[0, 0, 5.0], [1, 1, 7.0], [np.nan, 2, 9.0], [1, np.nan, np.nan]])
    task = task.fitted(values)
    assert task.outputs == 1 + 3 + 1
    outputs = np.array([[-1.0, 9, 0, 0, -1.2], [2, 0, 9, 0, 0], [-5, 0, 0, 9, 1.2], [3, 0, 0, 0, 50]])
    scores = task.scores(values, outputs)
    assert scores["er.auroc"] == 1.0  # the third bag has no er, whatever is said of it
    assert scores["grade.balanced_accuracy"] == 1.0
    assert scores["ki67.spearman"] == pytest.approx(1.0)
    assert scores["macro"] == pytest.approx(np.mean([scores["er.auroc"], scores["grade.auroc"], scores["ki67.r2"]]))
    assert task.describe(values)["known"] == {"er": 3, "grade": 3, "ki67": 3}
    said = task.joined([outputs, outputs])
    np.testing.assert_array_equal(said["er"], [0, 1, 0, 1])
    np.testing.assert_array_equal(said["grade"][:3], [0, 1, 2])


def test_a_task_is_read_back_from_its_record() -> None:
    for task in (
        survival("days", "dead", unit="days", bins=3, times=[2, 5]).fitted(FOLLOW_UP),
        regression("n").fitted(FOLLOW_UP[:, :1]),
        multilabel([ClassTarget("er", ("a", "b")), NumberTarget("k")]),
    ):
        assert task_from(task.record()) == task
    assert task_from(None, ("a", "b", "c")) == classification(["a", "b", "c"])


def test_the_summary_has_intervals_over_patients_and_the_mean_of_what_runs_say() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(60, 1))
    task = regression("x").fitted(values)
    outputs = [task.targets[0].standardised(values) + rng.normal(size=(60, 1)) for _ in range(2)]  # type: ignore
    found = summarise_outputs(task, values, outputs, [f"p{i // 2}" for i in range(60)])
    assert found["patients"] == 30
    assert found["mean"]["r2"] == pytest.approx(np.mean([task.scores(values, o)["r2"] for o in outputs]))
    low, high = found["interval"]["r2"]
    assert low < found["mean"]["r2"] < high
    assert found["ensemble"]["r2"] == pytest.approx(task.scores(values, np.mean(outputs, axis=0))["r2"])


def test_targets_that_cannot_be_learned_are_refused() -> None:
    with pytest.raises(DataError, match="constant"):
        regression("x").fitted(np.ones((5, 1)))
    with pytest.raises(DataError, match="no training bag has a value"):
        regression("x").fitted(np.full((5, 1), np.nan))
    with pytest.raises(DataError, match="1 of 3 training bags have the event"):
        survival().fitted(np.array([[1.0, 1], [2, 0], [3, 0]]))
    with pytest.raises(DataError, match="negative time"):
        survival().fitted(np.array([[-1.0, 1], [2, 1], [3, 0]]))
    with pytest.raises(DataError, match="no training bag has class 'b'"):
        ClassTarget("t", ("a", "b")).fitted(np.zeros((3, 1)))
    with pytest.raises(InputError, match="survival"):
        multilabel([TimeTarget()])
    with pytest.raises(InputError, match="Did you mean 'regression'"):
        resolve_task("regresion", [])

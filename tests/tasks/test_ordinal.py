"""Ordered grades: their loss, what outputs mean, and metrics, each against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.metrics import cohen_kappa_score, roc_auc_score

from dasmil.candidates.objective import objective_of
from dasmil.errors import DataError, InputError
from dasmil.tasks import GradeTarget, NumberTarget, multilabel, ordinal, summarise_outputs, task_from

GRADES = ("G1", "G2", "G3", "G4")


def graded(n: int = 200, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Grades [n, 1] of a hidden severity, and logits [n, 3] of lying above each cut as severity says with noise."""
    rng = np.random.default_rng(0)
    severity = rng.normal(size=n)
    cuts = np.array([-0.8, 0.2, 1.2])
    return (severity[:, None] > cuts).sum(1)[:, None].astype(float), severity[:, None] - cuts + noise * rng.normal(
        size=(n, 1)
    )


def test_probabilities_of_cuts_fall_and_the_grade_is_their_median() -> None:
    target = GradeTarget("grade", GRADES)
    said = target.said(np.array([[2.0, 0.5, -1.0], [-1.0, 1.0, -3.0]]))
    np.testing.assert_allclose(target.probabilities(said)[0], expit([2.0, 0.5, -1.0]))
    np.testing.assert_allclose(target.probabilities(said)[1], expit([1.0, -1.0, -3.0]))  # put into falling order
    np.testing.assert_allclose(said["grade_expected"], [expit([2, 0.5, -1]).sum(), expit([1, -1, -3]).sum()])
    np.testing.assert_array_equal(said["grade"], [2, 1])
    together = target.mean_of({name: (values[:1] + values[1:]) / 2 for name, values in said.items()})
    np.testing.assert_array_equal(together["grade"], [1])  # of the mean probabilities .81, .45, .16


def test_the_loss_is_the_mean_cross_entropy_of_the_cuts_and_starts_at_their_shares() -> None:
    values, outputs = graded()
    target = GradeTarget("grade", GRADES).fitted(values)
    loss = target.loss_of(values, balance=True)
    p, above = expit(outputs), values > np.arange(3)
    wanted = -np.where(above, np.log(p), np.log(1 - p)).mean(1)
    found = loss.each(torch.from_numpy(outputs), torch.from_numpy(values))
    np.testing.assert_allclose(found.numpy(), wanted)
    assert loss.start is not None
    np.testing.assert_allclose(expit(loss.start.numpy()), above.mean(0), rtol=1e-5)
    assert loss.guess == pytest.approx(loss.mean(loss.start.expand(len(values), -1).double(), torch.from_numpy(values)))


def test_metrics_are_those_of_their_definitions() -> None:
    values, outputs = graded()
    task = ordinal("grade", GRADES).fitted(values)
    found = task.scores(values, outputs)
    grade = task.said(outputs)["grade"]
    assert found["kappa"] == pytest.approx(cohen_kappa_score(values[:, 0], grade, weights="quadratic"))
    assert found["grade_error"] == pytest.approx(np.abs(values[:, 0] - grade).mean())
    for k, name in enumerate(GRADES[:-1]):
        assert found[f"auroc_above_{name}"] == pytest.approx(roc_auc_score(values[:, 0] > k, outputs[:, k]))
    perfect = task.scores(values, 20 * (values - np.arange(3) - 0.5))
    assert (perfect["kappa"], perfect["grade_error"], perfect["concordance"]) == (1.0, 0.0, 1.0)


def test_intervals_are_over_patients_and_a_cut_with_three_of_them_has_none() -> None:
    values, outputs = graded(120)
    values = np.concatenate([np.minimum(values, 2), np.full((6, 1), 3.0)])  # six bags of three patients have grade G4
    outputs = np.concatenate([outputs, np.full((6, 3), 1.0)])
    owners = [f"p{i // 2}" for i in range(126)]
    found = summarise_outputs(ordinal("grade", GRADES).fitted(values), values, [outputs], owners)
    assert found["patients"] == 63
    for name in ("kappa", "grade_error", "auroc_above_G2"):
        low, high = found["interval"][name]
        assert low < found["mean"][name] < high
    assert np.isnan(found["interval"]["auroc_above_G3"]).all()
    assert found["grades"] == {name: int((values == k).sum()) for k, name in enumerate(GRADES)}


def test_candidates_of_default_training_take_any_target_by_its_own_loss() -> None:
    values, outputs = graded(40)
    task = ordinal("grade", GRADES).fitted(values)
    asked = objective_of(task, values)
    assert asked.link.tolist() == [[1.0, 1.0, 1.0]]
    step = 1e-6
    for k in range(3):
        moved = outputs + step * np.eye(3)[k]
        slope = (asked.losses(moved) - asked.losses(outputs)) / step
        np.testing.assert_allclose(asked.gradient(outputs)[:, k], slope, atol=1e-5)
    several = multilabel([GradeTarget("grade", GRADES), NumberTarget("n")])
    both = np.concatenate([values, values], axis=1)
    both[:5, 0] = np.nan
    assert objective_of(several.fitted(both), both).outputs == 4


def test_a_record_is_read_again_and_what_cannot_be_learned_is_refused() -> None:
    task = ordinal("grade", GRADES)
    assert task_from(task.record()) == task
    with pytest.raises(DataError, match="its numbers or classes are none that training writes"):
        task_from({"kind": "ordinal", "targets": [{"kind": "ordinal", "name": "g", "classes": ["a", "a"]}]})
    with pytest.raises(DataError, match="no training bag has class 'G4' of the target 'grade'"):
        task.fitted(np.array([[0.0], [1], [2]]))
    with pytest.raises(DataError, match="'grade' holds 7, expected a class 0 to 3"):
        task.fitted(np.array([[0.0], [7]]))
    with pytest.raises(InputError, match="grades are 'a', expected two or more different names"):
        ordinal("grade", ["a"])

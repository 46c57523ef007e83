"""Losses of candidates: those of training, with gradients equal to differences and parts equal to rows."""

import numpy as np
import pytest
import torch

from dasmil.candidates.objective import Objective, objective_of
from dasmil.tasks import ClassTarget, NumberTarget, Task, classification, multilabel, regression, survival

RNG = np.random.default_rng(0)
N = 24
LABELS = np.arange(N)[:, None] % 3 * 1.0
TIMES = np.stack([RNG.exponential(5, N) + 0.1, (RNG.random(N) < 0.6) * 1.0], axis=1)
NUMBERS = RNG.normal(3, 2, (N, 1))
MIXED = np.stack([LABELS[:, 0] // 2, NUMBERS[:, 0]], axis=1)
MIXED[3, 0] = MIXED[5, 1] = np.nan
CASES: dict[str, tuple[Task, np.ndarray]] = {
    "two classes": (classification(("a", "b")), LABELS % 2),
    "three classes": (classification(("a", "b", "c")), LABELS),
    "hazards": (survival("t", "e"), TIMES),
    "cox": (survival("t", "e", method="cox"), TIMES),
    "number": (regression("x", loss="squared"), NUMBERS),
    "several": (multilabel([ClassTarget("y"), NumberTarget("x", loss="squared")]), MIXED),
}


def made(name: str) -> tuple[Objective, Task, np.ndarray]:
    task, values = CASES[name]
    fitted = task.fitted(values)
    return objective_of(fitted, values), fitted, values


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_differences_of_losses(name: str) -> None:
    objective, _, _ = made(name)
    outputs, step = RNG.normal(size=(N, objective.outputs)), 1e-6
    for k in range(objective.outputs):
        moved = np.zeros_like(outputs)
        moved[:, k] = step
        expected = (objective.losses(outputs + moved) - objective.losses(outputs - moved)) / (2 * step)
        np.testing.assert_allclose(objective.gradient(outputs)[:, k], expected, atol=1e-7)


@pytest.mark.parametrize("name", ["two classes", "three classes", "hazards", "number"])
def test_losses_are_those_of_training(name: str) -> None:
    objective, task, values = made(name)
    outputs = RNG.normal(size=(N, objective.outputs))
    (target, _, _), *_ = task.parts()
    loss = target.loss_of(values, balance=False)
    expected = loss.each(torch.from_numpy(outputs), torch.from_numpy(values)).double().numpy()
    np.testing.assert_allclose(objective.losses(outputs), expected, rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_part_has_the_losses_of_its_rows(name: str) -> None:
    objective, _, _ = made(name)
    outputs, rows = RNG.normal(size=(N, objective.outputs)), np.array([1, 4, 9, 16])
    np.testing.assert_allclose(objective.part(rows).losses(outputs[rows]), objective.losses(outputs)[rows])


def test_missing_values_cost_nothing() -> None:
    objective, _, _ = made("several")
    outputs = np.zeros((N, 2))
    assert objective.gradient(outputs)[3, 0] == 0
    assert objective.gradient(outputs)[5, 1] == 0
    assert objective.gradient(outputs)[3, 1] != 0

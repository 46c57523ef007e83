"""Which candidate is kept, and how its outputs are calibrated."""

import numpy as np
import pytest
from scipy.special import expit

from dasmil.candidates.objective import Classes
from dasmil.candidates.selection import calibrate, patient_losses, select


def cohort(n: int = 200, seed: int = 0) -> tuple[Classes, np.ndarray, list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = 1.5 * rng.normal(size=n)
    labels = (rng.random(n) < expit(truth)).astype(int)
    return Classes(labels, 2), truth[:, None], [str(i) for i in range(n)], np.zeros((n, 1))


def test_the_simplest_of_equals_is_kept() -> None:
    objective, truth, patients, constant = cohort()
    noise = 0.05 * np.random.default_rng(1).normal(size=truth.shape)
    kept = select({"simple": truth + noise, "rich": truth}, constant, objective, patients)
    assert kept.name == "simple"


def test_a_clearly_better_candidate_is_kept() -> None:
    objective, truth, patients, constant = cohort()
    noise = np.random.default_rng(1).normal(size=truth.shape)
    kept = select({"simple": noise, "rich": truth}, constant, objective, patients)
    assert kept.name == "rich"
    assert kept.losses["rich"] < kept.losses["constant"] < kept.losses["simple"]


def test_calibration_undoes_outputs_that_are_too_steep() -> None:
    objective, truth, patients, constant = cohort(2000)
    weight, bias = calibrate(3 * truth + 1, constant, objective, patients)
    assert weight == pytest.approx(1 / 3, abs=0.04)
    assert bias[0] == pytest.approx(-1 / 3, abs=0.15)


def test_outputs_that_say_nothing_are_muted() -> None:
    objective, truth, patients, constant = cohort(400)
    weight, _ = calibrate(np.random.default_rng(5).permutation(truth), constant, objective, patients)
    assert 0 <= weight < 0.25


def test_a_patient_is_judged_by_the_mean_of_its_bags() -> None:
    objective = Classes(np.array([1, 1, 0]), 2)
    outputs = np.array([[4.0], [0.0], [-1.0]])
    found = patient_losses(objective, outputs, ["a", "a", "b"])
    np.testing.assert_allclose(found, [np.log1p(np.exp(-2.0)), np.log1p(np.exp(-1.0))])

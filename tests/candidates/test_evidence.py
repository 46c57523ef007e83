"""The permutation test: its level under the null, and its power."""

import numpy as np

from dasmil.candidates.evidence import evidence_of, permutation_p, rank_p
from dasmil.candidates.objective import Classes


def test_shuffled_patients_are_found_in_one_of_twenty_cohorts() -> None:
    """400 cohorts of 40 patients, some with several bags, and three candidates: 5 % are found, within 2.2 errors."""
    rng = np.random.default_rng(0)
    found = 0
    for cohort in range(400):
        kernels = []
        for width in (3, 8, 60):
            x = rng.normal(size=(40, width)) * rng.uniform(0.2, 3, width)
            kernels.append(x @ x.T / np.trace(x @ x.T) * 40)
        outcomes = rng.permutation(np.r_[np.ones(14), np.zeros(26)])[:, None]
        found += permutation_p(kernels, outcomes, seed=cohort, permutations=39) <= 0.05
    assert 0.03 <= found / 400 <= 0.075


def test_a_signal_is_found_whatever_the_number_of_bags_of_a_patient() -> None:
    rng = np.random.default_rng(1)
    patients = [f"p{i}" for i in range(50) for _ in range(1 + i % 3)]
    level = {patient: rng.normal() for patient in patients}
    numbers = {"mean": np.array([[level[p] + rng.normal() for _ in range(4)] for p in patients])}
    labels = np.array([int(level[p] > 0) for p in patients])
    found = evidence_of(numbers, Classes(labels, 2), patients, [], np.zeros((len(labels), 1)))
    assert found.found
    assert found.patients == 50


def test_ranks_that_say_nothing_have_uniform_p_values() -> None:
    rng = np.random.default_rng(2)
    p = [rank_p(rng.normal(size=(30, 1)), (rng.random((30, 1)) < 0.4) * 1.0) for _ in range(2000)]
    assert 0.035 < np.mean(np.array(p) <= 0.05) < 0.065
    assert 0.45 < np.mean(p) < 0.55


def test_the_best_of_several_trained_candidates_counts_as_often_as_there_are_candidates() -> None:
    rng = np.random.default_rng(3)
    patients = [f"p{i}" for i in range(60)]
    labels = np.arange(60) % 2
    numbers, constant = {"mean": rng.normal(size=(60, 3))}, np.zeros((60, 1))
    good, noise = labels[:, None] + 1.5 * rng.normal(size=(60, 1)), rng.normal(size=(60, 1))
    one, three = (
        evidence_of(numbers, Classes(labels, 2), patients, some, constant).p for some in ([good], [noise, good, noise])
    )
    assert 0 < one < 0.02
    np.testing.assert_allclose(three, 3 * one)

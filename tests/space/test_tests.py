"""What the study claims: ridge and its leave-one-out choice, p-values under nulls, planted pairs, lengths, power."""

from __future__ import annotations

import numpy as np
import pytest

from dasmil.errors import DataError
from dasmil.space import Outcome, find_pairs, how_much, planted_power
from dasmil.space.adds import PENALTIES, WEIGHTS, deal_folds, predict_out_of_fold
from dasmil.space.outcome import martingale_residuals, outcome_of_patients
from dasmil.space.pairs import associations, step_down
from tests.space.cohorts import LENGTHS, counted, made_cohort


def ridge(x: np.ndarray, y: np.ndarray, new: np.ndarray, penalty: float) -> np.ndarray:
    centre, mean = x.mean(0), y.mean(0)
    inside = x - centre
    slope = np.linalg.solve(inside.T @ inside + penalty * np.eye(x.shape[1]), inside.T @ (y - mean))
    return mean + (new - centre) @ slope


def test_predictions_are_ridge_with_the_penalty_of_the_smallest_leave_one_out_error() -> None:
    rng = np.random.default_rng(0)
    composition, contacts = rng.normal(size=(14, 2)), rng.normal(size=(14, 3))
    outcome = Outcome("number", rng.normal(size=(14, 1)) + composition[:, :1])
    fold = deal_folds(outcome.strata, 2, 0)
    said = predict_out_of_fold(composition, contacts[None], outcome, fold)[0]
    for number in (0, 1):
        train, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        y, best = outcome.values[train], (np.inf, np.zeros((0, 1)))
        for weight in WEIGHTS:
            x = np.concatenate([composition, weight * contacts], axis=1)
            for penalty in PENALTIES * len(train):
                inner = x[train] - x[train].mean(0)  # leave-one-out of a smoother whose centre stays, but for the mean
                hat = 1 / len(train) + inner @ np.linalg.solve(inner.T @ inner + penalty * np.eye(5), inner.T)
                error = (((y - hat @ y) / (1 - np.diag(hat))[:, None]) ** 2).sum()
                if error < best[0]:
                    best = error, ridge(x[train], y, x[test], penalty)
        assert said[test] == pytest.approx(best[1])


def test_folds_are_balanced_within_strata() -> None:
    strata = np.array([0] * 13 + [1] * 8)
    fold = deal_folds(strata, 5, 3)
    for stratum in (0, 1):
        assert np.ptp(np.bincount(fold[strata == stratum], minlength=5)) <= 1


def test_martingale_residuals_are_events_minus_the_hazard() -> None:
    found = martingale_residuals(np.array([1.0, 2, 2, 3]), np.array([1.0, 1, 0, 1]))
    hazard = np.array([1 / 4, 1 / 4 + 1 / 3, 1 / 4 + 1 / 3, 1 / 4 + 1 / 3 + 1])
    assert found == pytest.approx(np.array([1, 1, 0, 1]) - hazard)


def test_step_down_is_westfall_and_young() -> None:
    null = np.array([[1.0, 5, 1], [2, 1, 3], [4, 2, 2], [1, 1, 1]])
    found = step_down(np.array([4.5, 3.5, 0.5]), null)
    # the first against the maximum of all, the second against that of the two others, the third against its own
    assert found == pytest.approx([2 / 5, 2 / 5, 1.0])
    assert associations(np.ones((4, 1)), np.zeros((4, 1)), np.ones((4, 1)) / 2) == 0


def test_p_values_hold_where_composition_tells_the_outcome_and_types_cluster() -> None:
    """Clustered types, composition that tells the outcome, several sections, smaller sections in one class."""
    smallest = []
    for number in range(60):
        sections, outcome = made_cohort(number, composition_effect=4.0, patches=4, sections=2, uneven=True, cells=70)
        if outcome.too_few() is None:
            found = find_pairs(counted(sections), outcome, LENGTHS, draws=99, resamples=2, seed=number)
            smallest.append(found[0].p_adjusted)
    assert len(smallest) > 40
    assert np.mean(np.array(smallest) <= 0.05) <= 0.12  # 0.05 and three standard errors of so few cohorts
    assert 0.38 <= np.mean(smallest) <= 0.65


def test_a_planted_pair_is_found_with_its_length_and_its_gain() -> None:
    sections, outcome = made_cohort(5, 30, planted=(0, 1, 30.0, 0.35), cells=200)
    patients = counted(sections, draws=19)
    found = find_pairs(patients, outcome, LENGTHS, draws=199, resamples=100)
    first = found[0]
    assert first.pair == (0, 1)
    assert first.p_adjusted <= 0.01
    assert first.length == pytest.approx(30.0)
    assert first.low <= first.length <= first.high
    assert 1 < np.exp(first.effect_low) < np.exp(first.effect) < np.exp(first.effect_high)
    adds = how_much(patients, outcome, draws=19)
    assert adds.both > 0.8  # 30 patients: its standard error is about 0.06
    assert adds.difference > 0.2
    assert adds.p == adds.p_labelling == 0.05  # the smallest of 19 permutations


def test_an_outcome_that_composition_tells_is_noted() -> None:
    patients = counted(made_cohort(3, 24)[0])
    told = patients.composition[:, :1]
    assert patients.left_of(told) < 0.3 < patients.left_of(np.random.default_rng(0).normal(size=(24, 1)))


def test_clustering_alike_in_both_classes_adds_nothing() -> None:
    sections, outcome = made_cohort(11, 24, patches=4)
    adds = how_much(counted(sections), outcome, draws=39)
    assert adds.p > 0.1
    assert adds.p_labelling is None
    assert adds.interval[0] < 0.1
    assert adds.detectable > 0


def test_more_patients_find_smaller_differences() -> None:
    sections, outcome = made_cohort(2, 24)
    power = planted_power(counted(sections), outcome, LENGTHS, sizes=(1.0, 3.0), replicates=12)
    few, many = (
        np.median([np.inf if one.smallest is None else one.smallest for one in power if one.patients == n])
        for n in (24, 72)
    )
    assert 0 < many < few < 3


def test_survival_and_numbers_find_a_planted_pair_too() -> None:
    sections, classes = made_cohort(5, 30, planted=(0, 1, 30.0, 0.35), cells=200)
    patients, rng = counted(sections), np.random.default_rng(0)
    high = classes.values[:, 0]
    number = Outcome("number", (high + rng.normal(0, 0.3, 30))[:, None], name="score")
    times = rng.exponential(np.where(high == 1, 1.0, 8.0))
    follow = Outcome("survival", np.stack([times, np.ones(30)], axis=1))
    for outcome in (number, follow):
        found = find_pairs(patients, outcome, LENGTHS, draws=199, resamples=20)
        planted = next(one for one in found if one.pair == (0, 1))
        assert planted.p_adjusted <= 0.05
        assert planted.z > 0
        assert how_much(patients, outcome, draws=1).difference > 0.1


def test_a_patient_has_one_outcome() -> None:
    values = np.array([[0.0], [1.0]])
    with pytest.raises(DataError, match="patient 'a' has bags with different outcomes"):
        outcome_of_patients("classes", values, ["a", "a"], ["a"], ("0", "1"), "class")

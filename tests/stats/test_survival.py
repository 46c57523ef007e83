"""Survival figures against their definitions written out over all pairs."""

import numpy as np
import pytest

from dasmil.errors import InputError
from dasmil.stats import (
    FollowUp,
    auroc_at,
    brier_at,
    calibration_at,
    default_grid,
    default_horizons,
    harrell,
    integrated,
    kaplan_meier,
    kaplan_meier_brier,
    log_rank,
    resampled,
    uno,
    wilson,
)


def cohort(n=80, seed=0, decimals=1):
    """Times with many ties between events, censorings and both, and a risk with ties."""
    rng = np.random.default_rng(seed)
    risk = rng.normal(0, 1, n).round(decimals)
    event, censored = rng.exponential(np.exp(-0.7 * risk)), rng.exponential(1.5, n)
    times = np.minimum(event, censored).round(decimals)
    return FollowUp(times, event <= censored), risk


def not_censored(follow, time, *, before):
    """The share not yet censored, by the product over every distinct time; events come before censorings."""
    left = 1.0
    for t in np.unique(follow.times):
        if t < time or (t == time and not before):
            watched = (follow.times > t).sum() + ((follow.times == t) & ~follow.events).sum()
            left *= 1 - ((follow.times == t) & ~follow.events).sum() / watched if watched else 1
    return left


def pairs_written_out(follow, risk, case_weight):
    right = total = 0.0
    for i in np.flatnonzero(follow.events):
        for j in range(len(follow)):
            later = follow.times[j] > follow.times[i]
            later |= follow.times[j] == follow.times[i] and not follow.events[j]
            if later:
                total += case_weight[i]
                right += case_weight[i] * ((risk[i] > risk[j]) + 0.5 * (risk[i] == risk[j]))
    return right / total


@pytest.mark.parametrize("seed", range(5))
def test_harrell_equals_the_definition(seed):
    follow, risk = cohort(seed=seed)
    found = harrell(follow, risk)
    assert found.shape == (1,)
    assert found[0] == pytest.approx(pairs_written_out(follow, risk, np.ones(len(follow))), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_uno_equals_the_definition(seed):
    follow, risk = cohort(seed=seed)
    weight = np.array([not_censored(follow, t, before=True) ** -2.0 for t in follow.times])
    assert uno(follow, risk)[0] == pytest.approx(pairs_written_out(follow, risk, weight), abs=1e-12)
    early = np.where(follow.times < 0.7, weight, 0)
    assert uno(follow, risk, until=0.7)[0] == pytest.approx(pairs_written_out(follow, risk, early), abs=1e-12)
    reference, _ = cohort(seed=seed + 50)
    share = np.array([not_censored(reference, t, before=True) for t in follow.times])
    weight = np.array([g**-2 if g > 0 else 0 for g in share])
    found = uno(follow, risk, reference=reference)[0]
    assert found == pytest.approx(pairs_written_out(follow, risk, weight), abs=1e-12)


def test_without_censoring_uno_is_harrell():
    follow, risk = cohort()
    follow = FollowUp(follow.times, np.ones(len(follow)))
    assert uno(follow, risk)[0] == pytest.approx(harrell(follow, risk)[0], abs=1e-12)


def test_censoring_biases_harrell_more_than_uno():
    """Where late patients are censored and only early events are ordered, Harrell's sees the early pairs alone."""
    rng = np.random.default_rng(0)
    n = 4000
    event = rng.exponential(1, n)
    risk = np.where(event < 0.7, -event, rng.normal(-2, 1, n))
    censored = rng.exponential(1.2, n)
    everything = harrell(FollowUp(event, np.ones(n)), risk)[0]
    follow = FollowUp(np.minimum(event, censored), event <= censored)
    assert abs(uno(follow, risk)[0] - everything) < 0.015 < abs(harrell(follow, risk)[0] - everything)


@pytest.mark.parametrize("time", [0.2, 0.6, 1.1])
def test_auroc_at_a_time_equals_the_definition(time):
    follow, risk = cohort(seed=4)
    cases = np.flatnonzero(follow.events & (follow.times <= time))
    controls = np.flatnonzero(follow.times > time)
    right = total = 0.0
    for i in cases:
        weight = 1 / not_censored(follow, follow.times[i], before=True)
        for j in controls:
            right += weight * ((risk[i] > risk[j]) + 0.5 * (risk[i] == risk[j]))
            total += weight
    assert auroc_at(follow, risk, time)[0] == pytest.approx(right / total, abs=1e-12)


@pytest.mark.parametrize("function", [harrell, uno, lambda f, r, w=None: auroc_at(f, r, 0.6, w)])
def test_weights_are_repeated_patients(function):
    follow, risk = cohort(n=40, seed=2)
    weights = next(resampled(follow.strata, None, 6, 0))
    for row, found in zip(weights.astype(int), function(follow, risk, weights)):
        rows = np.repeat(np.arange(len(follow)), row)
        assert found == pytest.approx(function(follow[rows], risk[rows])[0], abs=1e-12)


def test_brier_equals_the_definition_and_weights_repeat_patients():
    follow, risk = cohort(seed=6)
    times = np.array([0.2, 0.5, 0.9])
    told = np.exp(-np.exp(0.5 * risk)[:, None] * times)
    expected = []
    for k, t in enumerate(times):
        total = 0.0
        for i in range(len(follow)):
            if follow.events[i] and follow.times[i] <= t:
                total += told[i, k] ** 2 / not_censored(follow, follow.times[i], before=True)
            elif follow.times[i] > t:
                total += (1 - told[i, k]) ** 2 / not_censored(follow, t, before=False)
        expected.append(total / len(follow))
    assert brier_at(follow, told, times)[0] == pytest.approx(expected, abs=1e-12)
    weights = next(resampled(follow.strata, None, 4, 0))
    for row, found, km in zip(
        weights.astype(int), brier_at(follow, told, times, weights), kaplan_meier_brier(follow, times, weights)
    ):
        rows = np.repeat(np.arange(len(follow)), row)
        again = follow[rows]
        assert found == pytest.approx(brier_at(again, told[rows], times)[0], abs=1e-12)
        same = np.tile(kaplan_meier(again).at(times), (len(again), 1))
        assert km == pytest.approx(brier_at(again, same, times)[0], abs=1e-12)


def test_brier_without_censoring_is_the_mean_square():
    follow = FollowUp(np.array([1.0, 2, 3, 4]), np.ones(4))
    told = np.array([0.1, 0.4, 0.8, 0.9])[:, None]
    assert brier_at(follow, told, np.array([2.0]))[0, 0] == pytest.approx((0.01 + 0.16 + 0.04 + 0.01) / 4)


def test_integral_over_time_is_a_mean_by_trapezoids():
    times = np.array([0.0, 1, 3])
    assert integrated(np.array([[0.0, 1, 1], [0.2, 0.2, np.nan]]), times) == pytest.approx([2.5 / 3, 0.2])
    assert np.isnan(integrated(np.zeros((1, 0)), np.zeros(0))).all()


def test_kaplan_meier_by_hand_to_the_last_event():
    curve = kaplan_meier(FollowUp(np.array([1.0, 2, 2, 3]), np.array([1, 0, 1, 1])))
    assert curve.survival == pytest.approx([0.75, 0.5, 0.0])
    assert (curve.low[-1], curve.high[-1]) == (0, curve.high[-2])
    assert curve.median == 2
    assert np.isnan(kaplan_meier(FollowUp(np.array([1.0, 2]), np.array([0, 0]))).median)


def test_log_rank_that_cannot_be_made_is_nan():
    follow = FollowUp(np.array([1.0, 2, 3]), np.array([0, 0, 0]))
    assert np.isnan(log_rank(follow, [0, 1, 1])).all()
    assert np.isnan(log_rank(FollowUp(follow.times, np.ones(3)), [0, 0, 0])).all()
    with pytest.raises(InputError, match="2 groups for 3 bags"):
        log_rank(follow, [0, 1])


def test_calibration_of_groups():
    times = np.arange(1.0, 11)
    follow = FollowUp(times, np.ones(10))
    told = np.where(times <= 5, 0.2, 0.7)
    low, high = calibration_at(follow, told, 5.0, groups=2)
    assert (low["predicted"], low["observed"], low["n"], low["events"]) == (pytest.approx(0.3), 0, 5, 0)
    assert (high["predicted"], high["observed"], high["events"]) == (pytest.approx(0.8), 1, 5)
    assert low["interval"] == pytest.approx(wilson(0, 5))  # nobody was censored: the plain number of patients
    rows = calibration_at(follow, np.linspace(0.9, 0.1, 10), 3.0, groups=1)
    assert rows[0]["observed"] == pytest.approx(0.3)
    assert rows[0]["interval"] == pytest.approx(wilson(0.3, 10))
    short = calibration_at(FollowUp(np.array([1.0, 2]), np.array([1, 0])), np.array([0.5, 0.5]), 5.0)
    assert [np.isnan(row["observed"]) for row in short] == [True]  # watched until 2 only


def test_degenerate_follow_up():
    risk = np.array([3.0, 2, 1])
    nobody = FollowUp(np.array([1.0, 2, 3]), np.zeros(3))
    assert np.isnan(harrell(nobody, risk)).all()
    assert np.isnan(uno(nobody, risk)).all()
    assert np.isnan(auroc_at(nobody, risk, 2)).all()
    assert default_horizons(nobody) == []
    assert len(default_grid(nobody)) == 0
    one = FollowUp(np.array([1.0, 2, 3]), np.array([1, 0, 0]))
    assert harrell(one, risk)[0] == 1
    assert np.isnan(harrell(FollowUp(one.times, np.array([0, 0, 1])), risk)).all()  # nobody is left to compare with
    tied = FollowUp(np.ones(3), np.ones(3))
    assert np.isnan(harrell(tied, risk)).all()
    assert harrell(FollowUp(np.array([1.0, 2, 3]), np.ones(3)), np.zeros(3))[0] == 0.5


@pytest.mark.parametrize(
    ("times", "events", "message"),
    [
        ([1.0, -2], [0, 1], "1 of 2 times are negative, infinite or missing"),
        ([1.0, np.nan], [0, 1], "1 of 2 times are negative, infinite or missing"),
        ([1.0, 2], [0, 2], "events other than 0"),
        ([1.0, 2], [1], "expected one of each per bag"),
    ],
)
def test_bad_follow_up_is_refused(times, events, message):
    with pytest.raises(InputError, match=message):
        FollowUp(np.array(times), np.array(events))


def test_bad_predictions_are_refused():
    follow, risk = cohort()
    with pytest.raises(InputError, match="the model diverged"):
        harrell(follow, np.where(risk > 1, np.nan, risk))
    with pytest.raises(InputError, match="expected one of each bag"):
        uno(follow, risk[:-1])
    with pytest.raises(InputError, match="outside 0 to 1"):
        brier_at(follow, risk[:, None], np.array([1.0]))
    with pytest.raises(InputError, match="a column per time"):
        brier_at(follow, np.ones((len(follow), 2)), np.array([1.0]))

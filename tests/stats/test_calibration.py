"""Calibration, recalibration and decisions: against scikit-learn, a hand calculation and simulated patients."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from dasmil.errors import DataError, InputError
from dasmil.stats.calibration import calibrate, logistic_line, logistic_shift, logits, reliability
from dasmil.stats.decisions import (
    decision_curve,
    operating_point,
    threshold_for_cost,
    threshold_for_sensitivity,
    threshold_for_specificity,
)
from dasmil.stats.recalibrate import Recalibration, cross_fitted, fit_recalibration


def slides(rng, patients, *, slope=0.7, intercept=0.3, most=3):
    """Patients whose one to `most` slides share label and prediction; logit P(y=1) = intercept + slope logit(p)."""
    x = rng.normal(0, 1.5, patients)
    y = (rng.random(patients) < expit(intercept + slope * x)).astype(int)
    own = np.repeat(np.arange(patients), rng.integers(1, most + 1, patients))
    return y[own], expit(x[own]), [str(i) for i in own]


def test_slope_and_intercept_are_those_of_logistic_regression() -> None:
    rng = np.random.default_rng(0)
    y, p, _ = slides(rng, 200)
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(logits(p)[:, None], y)
    intercept, slope = logistic_line(logits(p), y)
    assert slope[0] == pytest.approx(model.coef_[0, 0], abs=1e-5)
    assert intercept[0] == pytest.approx(model.intercept_[0], abs=1e-5)
    shift = logistic_shift(logits(p), y)[0]
    assert expit(logits(p) + shift).mean() == pytest.approx(y.mean(), abs=1e-9)


def test_weights_count_as_repeated_bags() -> None:
    rng = np.random.default_rng(1)
    y, p, _ = slides(rng, 60)
    w = rng.integers(0, 4, (3, len(y))).astype(float)
    found = logistic_line(logits(p), y, w)
    for k in range(3):
        again = np.repeat(np.arange(len(y)), w[k].astype(int))
        one = logistic_line(logits(p[again]), y[again])
        assert (found[0][k], found[1][k]) == pytest.approx((one[0][0], one[1][0]), abs=1e-6)


def test_intervals_hold_the_truth_for_patients_with_several_slides() -> None:
    rng = np.random.default_rng(2)
    held = {"slope": [], "intercept": [], "brier": []}
    many = slides(np.random.default_rng(3), 60_000)
    truth = {"slope": 0.7, "intercept": 0.3, "brier": float(np.mean((many[1] - many[0]) ** 2))}
    for seed in range(120):
        found = calibrate(*slides(rng, 80, most=4), resamples=100, seed=seed).values
        for name, wanted in truth.items():
            held[name].append(found[name][1] <= wanted <= found[name][2])
    for name, hits in held.items():  # 120 draws at 95 %: a standard error of 2 %; slides counted alone reach 0.80
        assert 0.88 <= np.mean(hits) <= 0.99, name


def test_calibration_error_of_a_calibrated_model_stays_within_chance() -> None:
    rng = np.random.default_rng(4)
    inside = []
    for seed in range(120):
        y, p, patients = slides(rng, 60, slope=1, intercept=0)
        found = calibrate(y, p, patients, resamples=60, seed=seed)
        inside.append(found.values["calibration_error"][0] <= found.by_chance[1])
        assert math.isnan(found.values["calibration_error"][1])
    assert 0.87 <= np.mean(inside) <= 0.99


@pytest.mark.parametrize(
    ("labels", "predictions", "says"),
    [
        ([1] * 8, np.linspace(0.1, 0.9, 8), "one class"),
        ([0, 1] * 4, np.full(8, 0.3), "All predictions are 0.300"),
        ([0] * 5 + [1] * 5, np.linspace(0.1, 0.9, 10), "separate the classes completely"),
    ],
)
def test_what_has_no_slope_says_why(labels, predictions, says) -> None:
    found = calibrate(labels, predictions, resamples=50)
    assert says in found.problem
    assert math.isnan(found.values["slope"][0])
    assert math.isfinite(found.values["brier"][0])


def test_reliability_keeps_ties_together_and_counts_patients() -> None:
    rows = reliability([0, 1, 1, 0], [0.2, 0.2, 0.2, 0.9], ["a", "a", "b", "c"], bins=4)
    assert [(row["n"], row["patients"]) for row in rows] == [(3, 2), (1, 1)]
    assert rows[0]["observed"] == pytest.approx(2 / 3)


def test_recalibration_undoes_a_known_distortion_and_survives_json() -> None:
    rng = np.random.default_rng(5)
    y, p, _ = slides(rng, 3000, slope=0.5, intercept=-1.0, most=1)
    for method in ("platt", "isotonic"):
        found = Recalibration.from_json(fit_recalibration(y, p, method).as_json())
        other_y, other_p, _ = slides(rng, 3000, slope=0.5, intercept=-1.0, most=1)
        after = calibrate(other_y, found(other_p), resamples=0).values
        assert (
            after["calibration_error"][0]
            < 0.035
            < calibrate(other_y, other_p, resamples=0).values["calibration_error"][0]
        )
        if method == "platt":
            assert after["slope"][0] == pytest.approx(1, abs=0.12)
    isotonic = fit_recalibration(y, p, "isotonic")
    assert np.allclose(isotonic(p), IsotonicRegression(out_of_bounds="clip").fit(p, y).predict(p))


def test_temperature_finds_the_factor_of_two_and_of_three_classes() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(0, 2, (4000, 3))
    true = np.exp(x - x.max(1, keepdims=True))
    true /= true.sum(1, keepdims=True)
    y = np.array([rng.choice(3, p=row) for row in true])
    sharp = np.exp(2.5 * x)
    sharp /= sharp.sum(1, keepdims=True)
    found = fit_recalibration(y, sharp, "temperature")
    assert found.maps[0]["slope"] == pytest.approx(1 / 2.5, rel=0.06)
    assert np.abs(found(sharp) - true).mean() < 0.02
    assert np.array_equal(found(sharp).argmax(1), sharp.argmax(1))
    for method in ("platt", "isotonic"):
        assert np.allclose(fit_recalibration(y, sharp, method)(sharp).sum(1), 1)


def test_a_bag_that_fitted_the_map_cannot_judge_it() -> None:
    y, p, _ = slides(np.random.default_rng(7), 60, most=1)
    names = [f"bag{i}" for i in range(len(y))]
    found = Recalibration.from_json(fit_recalibration(y[:40], p[:40], bag_ids=names[:40]).as_json())
    found.refuse(names[40:])
    with pytest.raises(DataError, match=r"'bag39'.*only be judged on other bags"):
        found.refuse(names[39:])


@pytest.mark.parametrize("method", ["platt", "isotonic", "temperature"])
def test_cross_fitted_probabilities_do_not_see_their_own_label(method) -> None:
    y, p, patients = slides(np.random.default_rng(11), 90)
    folds = np.array([int(owner) % 3 for owner in patients])
    found = cross_fitted(y, p, folds, method)
    planted = np.where((folds == 0) & (np.arange(len(y)) % 4 == 0), 1 - y, y)
    assert np.array_equal(cross_fitted(planted, p, folds, method)[folds == 0], found[folds == 0])
    assert not np.array_equal(fit_recalibration(planted, p, method)(p), fit_recalibration(y, p, method)(p))


@pytest.mark.parametrize(("y", "p", "says"), [
    ([0, 1] * 5, np.linspace(0, 1, 10), "too few to fit"),
    ([0] * 27 + [1] * 3, np.linspace(0, 1, 30), "27, 3 by class"),
    ([0, 1] * 15, np.full(30, 0.4), "all predictions are equal"),
    ([1] * 15 + [0] * 15, np.linspace(0.2, 0.8, 30), "turn its order round"),
])  # fmt: skip
def test_too_little_to_recalibrate_is_refused(y, p, says) -> None:
    with pytest.raises(InputError, match=says):
        fit_recalibration(y, p)


def test_platt_is_finite_for_separated_classes() -> None:
    found = fit_recalibration([0] * 15 + [1] * 15, np.r_[np.linspace(0.1, 0.3, 15), np.linspace(0.7, 0.9, 15)])
    assert 0 < found.maps[0]["slope"] < 50
    with pytest.raises(DataError, match="not readable"):
        Recalibration.from_json({"method": "platt", "maps": [{"slope": "x", "intercept": 0}]})


def test_net_benefit_by_hand() -> None:
    # Of 100 patients 20 have the disease. At 0.2 the model flags 16 of them and 20 of the others:
    # 16/100 - 20/100 * 0.2/0.8 = 0.11; treating all: 0.2 - 0.8 * 0.25 = 0. (Vickers, van Calster, Steyerberg 2019)
    y = np.r_[np.ones(20), np.zeros(80)].astype(int)
    p = np.r_[np.full(16, 0.5), np.full(4, 0.1), np.full(20, 0.3), np.full(60, 0.1)]
    curve = decision_curve(y, p, thresholds=[0.1, 0.2, 0.4], resamples=200)
    assert curve.model == pytest.approx([0.2 - 0.8 / 9, 0.11, 0.16])
    assert curve.everyone == pytest.approx([0.2 - 0.8 / 9, 0.0, 0.2 - 0.8 * 2 / 3])
    assert curve.low[1] < 0.11 < curve.high[1]
    # At a prevalence of 5 %: 0.8 * 0.05 - 0.25 * 0.95 * 0.25.
    other = decision_curve(y, p, thresholds=[0.2], prevalence=0.05, resamples=0)
    assert other.model[0] == pytest.approx(0.8 * 0.05 - 0.25 * 0.95 * 0.25)


def test_net_benefit_above_all_and_none_is_judged_by_paired_resamples() -> None:
    rng = np.random.default_rng(10)
    y, noise = (rng.random(300) < 0.3).astype(int), rng.random(300)
    assert not decision_curve(y, noise, resamples=200).useful(), "a guess is never better than all or none"
    p = np.clip(0.2 + 0.45 * y + 0.2 * rng.normal(size=300), 0.01, 0.99)
    curve = decision_curve(y, p, resamples=200)
    assert any(low < 0.4 < high for low, high in curve.useful())
    # Draws with more patients who have the disease raise the model and acting on all alike.
    at = int(np.argmin(np.abs(curve.thresholds - 0.15)))
    assert curve.gain[at] > curve.low[at] - max(curve.everyone[at], 0)


def test_intervals_of_net_benefit_and_rates_hold_the_truth() -> None:
    rng = np.random.default_rng(8)
    held = {"benefit": [], "sensitivity": [], "ppv": [], "npv": [], "flagged": []}
    y, p, _ = slides(np.random.default_rng(9), 60_000, slope=1.5, intercept=-0.5)
    truth = operating_point(y, p, 0.3, prevalence=0.2, resamples=0).values
    benefit = decision_curve(y, p, thresholds=[0.3], resamples=0).model[0]
    for seed in range(100):
        bags = slides(rng, 80, slope=1.5, intercept=-0.5)
        curve = decision_curve(*bags, thresholds=[0.3], resamples=100, seed=seed)
        held["benefit"].append(curve.low[0] <= benefit <= curve.high[0])
        found = operating_point(bags[0], bags[1], 0.3, bags[2], prevalence=0.2, resamples=100, seed=seed).values
        for name in ("sensitivity", "ppv", "npv", "flagged"):
            held[name].append(found[name][1] <= truth[name][0] <= found[name][2])
    for name, hits in held.items():
        assert 0.88 <= np.mean(hits) <= 1.0, (name, np.mean(hits))


def test_operating_point_by_hand_and_at_the_edge() -> None:
    y, p = [1] * 10 + [0] * 10, [0.9] * 9 + [0.1] + [0.8] * 2 + [0.2] * 8
    found = operating_point(y, p, 0.5, prevalence=0.1, resamples=200).values
    assert found["sensitivity"][0] == pytest.approx(0.9)
    assert found["ppv"][0] == pytest.approx(0.09 / (0.09 + 0.2 * 0.9))
    assert found["npv"][0] == pytest.approx(0.72 / (0.72 + 0.01))
    perfect = operating_point([0] * 10 + [1] * 10, [0.1] * 10 + [0.9] * 10, 0.5, resamples=200).values
    assert perfect["ppv"][0] == 1
    assert 0.5 < perfect["ppv"][1] < 0.95, "a perfect score of ten patients is no certainty"
    nobody = operating_point(y, p, 0.95, resamples=50).values
    assert math.isnan(nobody["ppv"][0])


def test_thresholds_reach_their_target_on_ties_too() -> None:
    y, p = np.array([1, 1, 1, 1, 0, 0, 0, 0]), np.array([0.9, 0.6, 0.6, 0.2, 0.7, 0.6, 0.3, 0.1])
    assert threshold_for_sensitivity(y, p, 0.75) == 0.6
    assert threshold_for_sensitivity(y, p, 0.8) == 0.2
    t = threshold_for_specificity(y, p, 0.75)
    assert (p[y == 0] < t).mean() == 0.75
    assert threshold_for_cost(9) == pytest.approx(0.1)
    with pytest.raises(InputError, match="sensitivity to reach is 95"):
        threshold_for_sensitivity(y, p, 95)
    with pytest.raises(InputError, match="above 0"):
        threshold_for_cost(0)
    with pytest.raises(InputError, match="one class"):
        decision_curve([1, 1], [0.2, 0.3])
    with pytest.raises(InputError, match="prevalence is 5"):
        decision_curve(y, p, prevalence=5)

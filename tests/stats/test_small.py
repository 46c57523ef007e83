"""Intervals of few patients: not degenerate, known values, and as often right as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from dasmil.stats import auroc, auroc_interval, mean_difference, mean_interval, summarise, wilson
from dasmil.stats.small import FEW, FEWEST, class_patients, honest_interval

PERFECT = [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9]


def test_a_perfect_score_on_few_bags_is_no_certainty() -> None:
    y = np.repeat([0, 1], 4)
    found = summarise(y, [PERFECT], [0.5])
    assert found["mean"]["auroc"] == 1.0
    assert found["fewest"] == 4
    assert found["interval"]["auroc"] == pytest.approx([0.582, 1.0], abs=1e-3)
    assert found["interval"]["sensitivity"] == pytest.approx(wilson(1.0, 4))
    assert found["interval"]["balanced_accuracy"] == pytest.approx(wilson(1.0, 8))
    assert np.isnan(found["interval"]["average_precision"]).all()  # no width and no other interval: none
    assert found["ensemble"]["interval"]["auroc"] == found["interval"]["auroc"]
    folds = mean_interval([(y, [PERFECT], [0.5], None)] * 5)
    assert folds["auroc"] == pytest.approx([0.885, 1.0], abs=1e-3)
    assert folds["sensitivity"] == pytest.approx(wilson(1.0, 20))


def test_three_bags_of_a_class_say_nothing() -> None:
    y = np.array([0, 0, 0, 0, 1, 1, 1])
    found = summarise(y, [PERFECT[:4] + PERFECT[5:]], [0.5])
    assert found["fewest"] == 3 < FEWEST
    assert all(np.isnan(ends).all() for ends in found["interval"].values())
    slides = summarise(np.repeat(y, 3), [np.repeat(PERFECT[:7], 3)], [0.5], patients=[str(i // 3) for i in range(21)])
    assert slides["fewest"] == 3  # patients count, not their slides


def test_many_bags_keep_their_bootstrap_unless_it_has_no_width() -> None:
    counts = [np.array([FEW, FEW])]
    assert honest_interval("auroc", 0.9, (0.8, 0.95), counts) == [0.8, 0.95]
    low, high = honest_interval("auroc", 1.0, (1.0, 1.0), counts)
    assert 0.9 < low < 1.0 == high
    assert honest_interval("auroc", 0.5, (0.5, 0.5), counts)[0] < 0.4


def test_patients_of_each_class_are_counted_once() -> None:
    found = class_patients(np.array([0, 0, 1, 1, 2]), ["a", "a", "a", "b", "c"], 4)
    assert found.tolist() == [1, 2, 1, 0]


def test_newcombe_is_symmetric_and_narrows() -> None:
    counts = [np.array([10, 30])]
    low, high = auroc_interval(0.8, counts)
    assert auroc_interval(0.2, counts) == pytest.approx((1 - high, 1 - low))
    assert auroc_interval(0.8, [np.array([100, 300])])[0] > low
    three = auroc_interval(0.8, [np.array([10, 10, 10])])
    assert low - 0.1 < three[0] < 0.8 < three[1] < 1


@pytest.mark.parametrize(
    ("positives", "negatives", "truth"), [(4, 4, 0.97), (5, 15, 0.75), (8, 8, 0.9), (20, 20, 0.97)]
)
def test_the_interval_of_few_bags_holds_the_truth_19_times_in_20(positives: int, negatives: int, truth: float) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat([1, 0], [positives, negatives])
    shift = norm.ppf(truth) * np.sqrt(2)
    held = 0
    for _ in range(400):
        value = float(auroc(rng.normal(0, 1, len(y)) + shift * y, y == 1)[0])
        low, high = auroc_interval(value, [np.array([negatives, positives])])
        held += low <= truth <= high
    assert 0.92 <= held / 400 <= 1.0  # the bootstrap: 0.24 to 0.87


def test_a_difference_on_three_patients_of_a_class_has_no_interval() -> None:
    """Nor has a score of so few: a difference that seems sure beside a score that says nothing would mislead."""
    labels = [0, 1] * 3
    good, bad = [0.1, 0.9, 0.2, 0.8, 0.3, 0.7], [0.5, 0.4, 0.1, 0.3, 0.6, 0.2]
    found = mean_difference([(labels, [good], [bad], None)])
    assert found["difference"] == pytest.approx(1 - 3 / 9)
    assert all(math.isnan(end) for end in found["interval"])
    folds = [(labels, [good], [bad], None)] * 2  # six of each class over all folds
    assert mean_difference(folds)["interval"][0] > 0

"""Prediction sets: coverage by simulation with several slides a patient, split and cross, by class and by group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dasmil.errors import DataError, InputError
from dasmil.stats.conformal import Conformal, coverage_of, cross_coverage, fit_conformal
from dasmil.stats.referral import certainty, referral_curve


def slides(rng, patients, *, model: Any = 0.0, hard=0.0):
    """Three classes; a patient has one label and 1 to 5 slides that share most of the noise."""
    y = rng.choice(3, patients, p=[0.6, 0.3, 0.1])
    own = np.repeat(np.arange(patients), rng.integers(1, 6, patients))
    x = 1.5 * np.eye(3)[y] + (1 + hard) * rng.normal(size=(patients, 3))
    x = x[own] + 0.3 * rng.normal(size=(len(own), 3)) + model
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    return y[own], p, [str(i) for i in own]


def covered(conformal, y, probabilities, patients, groups=None):
    return coverage_of(conformal.sets(probabilities, groups), y, patients)


@pytest.mark.parametrize("coverage", [0.9, 0.95])
def test_split_sets_cover_new_patients(coverage) -> None:
    rng = np.random.default_rng(0)
    found, naive = [], []
    for _ in range(120):
        y, p, patients = slides(rng, 60)
        new = slides(rng, 40)
        found.append(covered(fit_conformal([(y, p, patients)], coverage=coverage), new[0], [new[1]], new[2]).covered)
        alone = fit_conformal([(y, p, [str(i) for i in range(len(y))])], coverage=coverage)
        naive.append(covered(alone, new[0], [new[1]], new[2]).covered)
    assert coverage - 0.01 <= np.mean(found) <= coverage + 0.02
    assert np.mean(naive) < np.mean(found), "slides counted as patients promise more than they hold"


def test_cross_sets_cover_new_patients_and_judge_themselves() -> None:
    rng = np.random.default_rng(1)
    found, own = [], []
    shifts = rng.normal(0, 0.5, (5, 3))  # five models that differ
    for _ in range(60):
        folds = [slides(rng, 20, model=shift) for shift in shifts]
        conformal = fit_conformal(folds, coverage=0.9)
        y, p, patients = slides(rng, 40)
        every = []
        for shift in shifts:
            x = np.log(p) + shift
            every.append(np.exp(x) / np.exp(x).sum(1, keepdims=True))
        found.append(covered(conformal, y, every, patients).covered)
        own.append(cross_coverage(conformal, folds).covered)
    assert 0.89 <= np.mean(found) <= 0.94
    assert 0.87 <= np.mean(own) <= 0.94


def test_by_class_every_class_is_covered_and_by_group_every_group() -> None:
    rng = np.random.default_rng(2)
    rare, rare_whole, hard, hard_whole = [], [], [], []
    rarely = np.array([0.0, 0.0, -1.5])  # the last class is given too little
    for _ in range(40):
        y, p, patients = slides(rng, 250, model=rarely)
        new_y, new_p, new_patients = slides(rng, 250, model=rarely)
        last = new_y == 2
        owners = [o for o, is_rare in zip(new_patients, last) if is_rare]
        for hits, by_class in ((rare, True), (rare_whole, False)):
            sets = fit_conformal([(y, p, patients)], coverage=0.9, by_class=by_class).sets([new_p])
            hits.append(coverage_of(sets[last], new_y[last], owners).covered)
        easy, other = slides(rng, 60), slides(rng, 60, hard=1.5)
        y, p = np.concatenate([easy[0], other[0]]), np.concatenate([easy[1], other[1]])
        names = [f"e{o}" for o in easy[2]] + [f"h{o}" for o in other[2]]
        groups = ["easy"] * len(easy[0]) + ["hard"] * len(other[0])
        new = slides(rng, 60, hard=1.5)
        apart = fit_conformal([(y, p, names)], coverage=0.9, groups=[groups])
        hard.append(covered(apart, new[0], [new[1]], new[2], ["hard"] * len(new[0])).covered)
        hard_whole.append(covered(fit_conformal([(y, p, names)]), new[0], [new[1]], new[2]).covered)
    assert 0.885 <= np.mean(rare) <= 0.96
    assert np.mean(rare_whole) < 0.85
    assert 0.885 <= np.mean(hard) <= 0.94
    assert np.mean(hard_whole) < 0.88


def test_p_value_by_hand_and_json() -> None:
    # Patients a (two slides) and b: scores of the true class 0.1, 0.5 | 0.3.
    y, p = [1, 1, 0], [0.9, 0.5, 0.3]
    conformal = fit_conformal([(y, p, ["a", "a", "b"])], coverage=0.5)
    # New bag, probability 0.6: class 1 scores 0.4 -> half a patient is as bad; class 0 scores 0.6 -> none.
    assert conformal.p_values([[0.6]])[0] == pytest.approx([1 / 3, 1.5 / 3])
    again = Conformal.from_json(conformal.as_json())
    assert np.array_equal(again.p_values([[0.6]]), conformal.p_values([[0.6]]))
    with pytest.raises(DataError, match="not readable"):
        Conformal.from_json({"folds": [{}]})


def test_too_few_patients_and_missing_groups_are_refused() -> None:
    y, p, patients = slides(np.random.default_rng(3), 8)
    with pytest.raises(InputError, match=r"8 patients are too few .* expected 9 or more"):
        fit_conformal([(y, p, patients)], coverage=0.9)
    with pytest.raises(InputError, match="coverage is 90"):
        fit_conformal([(y, p, patients)], coverage=90)
    y, p, patients = slides(np.random.default_rng(3), 30)
    apart = fit_conformal([(y, p, patients)], coverage=0.8, groups=[["x"] * len(y)])
    with pytest.raises(InputError, match="say the group"):
        apart.sets([p])
    assert apart.sets([p[:1]], ["never seen"]).all(), "nothing can be ruled out in a group without patients"


def test_referral_keeps_the_certain_ones() -> None:
    y, p = [1, 0, 1, 0, 1], [0.95, 0.05, 0.4, 0.2, 0.8]
    found = referral_curve(y, p, shares=[0, 0.2, 0.4], resamples=50)
    assert found.accuracy == pytest.approx([0.8, 1, 1])
    assert found.needed(0.95) == 0.2
    assert found.needed(1.1) is None
    assert certainty([0.1, 0.5, 0.2, 1.0], 0.2) == pytest.approx([0.5, 0.375, 0.0, 1.0])
    assert certainty([[0.6, 0.3, 0.1]]) == pytest.approx([0.3])

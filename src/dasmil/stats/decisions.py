"""Decisions at a threshold of the probability: net benefit, operating points, predictive values at a prevalence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from dasmil.errors import InputError
from dasmil.stats.metrics import RESAMPLES, _checked
from dasmil.stats.ranking import divide
from dasmil.stats.resample import interval, resampled
from dasmil.stats.small import class_patients, honest_interval

Array = NDArray[np.float64]
Rate = tuple[float, float, float]
"""A value and the ends of its 95 % interval."""
THRESHOLDS = np.linspace(0.01, 0.99, 99)


@dataclass(frozen=True, eq=False)
class DecisionCurve:
    """Net benefit at every threshold [thresholds]: of the model with its 95 % band, and of acting on every patient.

    Acting on none has net benefit 0 everywhere. gain: the lower end of the band of what the model has above the better
    of the two, from the same resamples.
    """

    thresholds: Array
    model: Array
    low: Array
    high: Array
    everyone: Array
    gain: Array

    def useful(self) -> list[tuple[float, float]]:
        """The ranges of thresholds at which the model is shown to be better than acting on all and on none."""
        better = self.gain > 0
        edges = np.flatnonzero(np.diff(np.concatenate([[0], better.astype(int), [0]])))
        return [(float(self.thresholds[a]), float(self.thresholds[b - 1])) for a, b in zip(edges[::2], edges[1::2])]


def decision_curve(
    labels: ArrayLike,
    probability: ArrayLike,
    patients: Sequence[str] | None = None,
    *,
    prevalence: float | None = None,
    thresholds: ArrayLike = THRESHOLDS,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> DecisionCurve:
    """Net benefit (Vickers and Elkin 2006) with intervals over patients.

    sensitivity * prevalence - (1 - specificity) * (1 - prevalence) * t / (1 - t). prevalence: of the population that
    decisions are for; None: the share of positive bags here.
    """
    y, p = _two_classes(labels, probability)
    prevalence = check_prevalence(prevalence)
    t = np.asarray(thresholds, dtype=np.float64)
    # A fixed prevalence keeps the number of patients of each class, an estimated one is resampled with them.
    strata = np.zeros(len(y), np.int64) if prevalence is None else y
    weights = np.concatenate([np.ones((1, len(y))), *resampled(strata, patients, resamples, seed)])
    drawn = net_benefit(y, p, t, weights, prevalence=prevalence)
    low, high = np.nanpercentile(drawn[1:], [2.5, 97.5], axis=0) if resamples else (drawn[0], drawn[0])
    everyone = net_benefit(y, np.ones(len(y)), t, weights, prevalence=prevalence)
    above = drawn - np.maximum(everyone, 0)
    gain = np.nanpercentile(above[1:], 2.5, axis=0) if resamples else above[0]
    return DecisionCurve(t, drawn[0], low, high, everyone[0], gain)


def net_benefit(
    labels: ArrayLike,
    probability: ArrayLike,
    thresholds: Array,
    weights: Array | None = None,
    *,
    prevalence: float | None = None,
) -> Array:
    """[draws, thresholds] of acting on every bag whose probability reaches the threshold."""
    y, p = np.asarray(labels), np.asarray(probability, dtype=np.float64)
    w = np.ones((1, len(y))) if weights is None else weights
    acted = (p[:, None] >= thresholds).astype(np.float64)
    positives, negatives = (w * (y == 1)).sum(1, keepdims=True), (w * (y == 0)).sum(1, keepdims=True)
    hits, alarms = divide((w * (y == 1)) @ acted, positives), divide((w * (y == 0)) @ acted, negatives)
    share = positives / (positives + negatives) if prevalence is None else prevalence
    # Without a patient of a class its term is 0: nobody is there to gain or to lose.
    gain, loss = np.where(positives > 0, hits, 0) * share, np.where(negatives > 0, alarms, 0) * (1 - share)
    return gain - loss * thresholds / (1 - thresholds)


def threshold_for_sensitivity(labels: ArrayLike, probability: ArrayLike, target: float) -> float:
    """The highest threshold at which a share ``target`` of the positive bags is found (predicted at or above it)."""
    return _edge(labels, probability, target, positive=True, name="sensitivity")


def threshold_for_specificity(labels: ArrayLike, probability: ArrayLike, target: float) -> float:
    """The lowest threshold at which a share ``target`` of the negative bags is below it."""
    return _edge(labels, probability, target, positive=False, name="specificity")


def _edge(labels: ArrayLike, probability: ArrayLike, target: float, *, positive: bool, name: str) -> float:
    y, p = _two_classes(labels, probability)
    if not 0 < target <= 1:
        raise InputError(f"the {name} to reach is {target:g}, expected a share above 0 and up to 1")
    own = np.sort(p[(y == 1) == positive])
    if positive:
        return float(own[len(own) - math.ceil(target * len(own) - 1e-9)])
    return float(np.nextafter(own[math.ceil(target * len(own) - 1e-9) - 1], np.inf))


def threshold_for_cost(missed: float) -> float:
    """The threshold with the smallest expected cost when a missed positive costs ``missed`` times a false alarm.

    1 / (1 + missed); it presumes calibrated probabilities.
    """
    if not (missed > 0 and math.isfinite(missed)):
        raise InputError(f"the cost of a missed positive is {missed:g} false alarms, expected a number above 0")
    return 1 / (1 + missed)


@dataclass(frozen=True)
class OperatingPoint:
    """What a threshold does: every rate as (value, low, high), NaN where it cannot be given."""

    threshold: float
    prevalence: float
    values: dict[str, Rate]

    def as_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"threshold": self.threshold, "prevalence": self.prevalence,
                "values": {name: list(v) for name, v in self.values.items()}}  # fmt: skip


def operating_point(
    labels: ArrayLike,
    probability: ArrayLike,
    threshold: float | ArrayLike,
    patients: Sequence[str] | None = None,
    *,
    prevalence: float | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> OperatingPoint:
    """Sensitivity, specificity, PPV, NPV and flagged share at a threshold (one, or one of every bag [n]).

    prevalence: at which PPV and NPV are given, None: that of these bags. Intervals resample patients within class; of
    few patients, or rates of 0 and 1, they are Wilson's. Those of PPV, NPV and flagged follow from the two rates.
    """
    y, p = _two_classes(labels, probability)
    prevalence = check_prevalence(prevalence)
    acted = (p >= np.asarray(threshold)).astype(np.float64)
    weights = np.concatenate([np.ones((1, len(y))), *resampled(y, patients, resamples, seed)])
    up, down = weights * (y == 1), weights * (y == 0)
    sensitivity, specificity = divide(up @ acted, up.sum(1)), divide(down @ (1 - acted), down.sum(1))
    counts = [class_patients(y, patients, 2)]
    share = float(y.mean()) if prevalence is None else prevalence
    rates: dict[str, Rate] = {}
    for name, found in (("sensitivity", sensitivity), ("specificity", specificity)):
        value = float(found[0])
        low, high = honest_interval(name, value, interval(found[1:]), counts)
        rates[name] = (value, low, high)
    sens, spec = rates["sensitivity"], rates["specificity"]
    wrong = (1 - spec[0], 1 - spec[2], 1 - spec[1])  # of the negatives, those flagged
    missed = (1 - sens[0], 1 - sens[2], 1 - sens[1])
    values = {
        **rates,
        "ppv": _predictive(sens, wrong, share),
        "npv": _predictive(spec, missed, 1 - share),
        "flagged": _sum(sens, wrong, share),
    }
    cut = np.unique(np.asarray(threshold, dtype=np.float64))
    return OperatingPoint(float(cut.mean()), share, values)


def _predictive(right: Rate, wrong: Rate, share: float) -> Rate:
    """Of those called so, the share that is so; NaN where none is called so.

    Its log odds are logit(share) + log(right) - log(wrong), whose interval joins those of the two rates (MOVER, Zou and
    Donner, Statistics in Medicine 27, 2008); with a rate of 0 both ends at once are taken, which is wider.
    """

    def odds(a: float, b: float) -> float:
        up, down = a * share, b * (1 - share)
        return up / (up + down) if up + down > 0 else math.nan

    value = odds(right[0], wrong[0])
    if not (right[0] > 0 and wrong[0] > 0 and right[1] > 0 and wrong[1] > 0):
        return value, odds(right[1], wrong[2]), odds(right[2], wrong[1])
    centre = math.log(share / (1 - share)) + math.log(right[0]) - math.log(wrong[0])
    down = math.hypot(math.log(right[0] / right[1]), math.log(wrong[2] / wrong[0]))
    up = math.hypot(math.log(right[2] / right[0]), math.log(wrong[0] / wrong[1]))
    return value, float(expit(centre - down)), float(expit(centre + up))


def _sum(right: Rate, wrong: Rate, share: float) -> Rate:
    """Share that is flagged in all, by the same method."""
    value = share * right[0] + (1 - share) * wrong[0]
    down = math.hypot(share * (right[0] - right[1]), (1 - share) * (wrong[0] - wrong[1]))
    up = math.hypot(share * (right[2] - right[0]), (1 - share) * (wrong[2] - wrong[0]))
    return value, value - down, value + up


def check_prevalence(value: float | None) -> float | None:
    """A share of positive patients that was stated, or None."""
    if value is not None and not 0 < value < 1:
        raise InputError(f"the prevalence is {value:g}, expected a share between 0 and 1, for example 0.05")
    return value


def _two_classes(labels: ArrayLike, probability: ArrayLike) -> tuple[NDArray[np.int64], Array]:
    y, p = _checked(labels, probability)
    if p.ndim > 1:
        raise InputError("a threshold needs two classes: give the probability of one class against the rest")
    if y.min() == y.max():
        raise InputError(f"all {len(y)} bags are of one class: decisions need bags of both")
    return y, p

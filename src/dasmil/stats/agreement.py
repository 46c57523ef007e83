"""Agreement of ordered classes (weighted kappa), and bags gathered into patients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasmil.errors import InputError
from dasmil.stats.metrics import RESAMPLES
from dasmil.stats.resample import interval, patient_numbers, resampled
from dasmil.stats.small import FEWEST, NARROW

Array = NDArray[np.float64]


def kappa(
    truth: ArrayLike, predicted: ArrayLike, classes: int, weights: Array | None = None, *, power: int = 2
) -> Array:
    """Cohen's kappa [draws] whose disagreements weigh |i - j| ** power: 2 quadratic, 1 linear, 0 unweighted.

    NaN where chance alone has no disagreement (all bags and all predictions are of one class).
    """
    a, b = np.asarray(truth, dtype=np.int64), np.asarray(predicted, dtype=np.int64)
    w = np.ones((1, len(a))) if weights is None else np.asarray(weights, dtype=np.float64)
    gap = np.abs(np.subtract.outer(np.arange(classes), np.arange(classes)))
    cost = (gap > 0).astype(np.float64) if power == 0 else gap.astype(np.float64) ** power
    rows, columns = w @ np.eye(classes)[a], w @ np.eye(classes)[b]
    seen = w @ cost[a, b] / w.sum(1)
    chance = np.einsum("di,ij,dj->d", rows, cost, columns) / np.square(w.sum(1))
    return np.divide(chance - seen, chance, out=np.full(len(w), np.nan), where=chance > 0)


def kappa_interval(
    truth: ArrayLike,
    predicted: ArrayLike,
    classes: int,
    patients: Sequence[str] | None = None,
    *,
    power: int = 2,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Weighted kappa with its 95 % interval over patients; NaN ends where there are too few, or nothing varies."""
    a = np.asarray(truth, dtype=np.int64)
    if len(a) == 0:
        raise InputError("no bags: expected one true and one predicted class for each")
    value = float(kappa(a, predicted, classes, power=power)[0])
    owners = len(a) if patients is None else len(set(patients))
    if owners < 2 * FEWEST or not math.isfinite(value):
        return value, math.nan, math.nan
    draws = np.concatenate([kappa(a, predicted, classes, w, power=power)
                            for w in resampled(np.zeros(len(a), np.int64), patients, resamples, seed)])  # fmt: skip
    low, high = interval(draws)
    return (value, low, high) if high - low > NARROW else (value, math.nan, math.nan)


@dataclass(frozen=True, eq=False)
class ByPatient:
    """Patients in place of bags: names, labels [patients] and mean probabilities; mixed: patients left out because
    their bags have several labels.
    """

    patients: list[str]
    labels: NDArray[np.int64]
    probabilities: Array
    mixed: int


def by_patient(labels: ArrayLike, probabilities: ArrayLike, patients: Sequence[str]) -> ByPatient:
    """Gather bags into patients: the mean probability of the bags of each patient whose bags all have one label."""
    y, p = np.asarray(labels, dtype=np.int64), np.asarray(probabilities, dtype=np.float64)
    owner = patient_numbers(patients)
    names = list(dict.fromkeys(patients))
    count = np.bincount(owner)
    lowest, highest = np.full(len(names), y.max()), np.full(len(names), y.min())
    np.minimum.at(lowest, owner, y)
    np.maximum.at(highest, owner, y)
    total = np.zeros((len(names), *p.shape[1:]))
    np.add.at(total, owner, p)
    mean = total / count.reshape(-1, *[1] * (p.ndim - 1))
    same = np.flatnonzero(lowest == highest)
    return ByPatient([names[i] for i in same], lowest[same], mean[same], len(names) - len(same))

"""Intervals of few patients, where resampling fails: the bootstrap of a perfect score has no width.

Where the bootstrap has no width, or a class has fewer than FEW patients, the score interval takes its place: all values
whose own standard error does not rule out what was seen. Of rates that is Wilson's (1927), with the number of
patients that has the variance of the mean; of AUROC Newcombe's fifth method (Statistics in Medicine 25, 559-573, 2006),
with the variance of Hanley and McNeil (1982); of folds both with the variance of a mean over folds.
Other metrics without width have no interval. Fewer than FEWEST patients of a class say nothing: chance ranks three
positives above three negatives once in twenty tries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dasmil.stats.curves import Z, wilson
from dasmil.stats.resample import patient_numbers

FEWEST = 4
FEW = 30
NARROW = 1e-9

Counts = NDArray[np.int64]
"""Patients with a bag of each class [classes]."""


def class_patients(labels: NDArray[np.int64], patients: Sequence[str] | None, classes: int) -> Counts:
    """How many patients have bags of each class."""
    owner = np.arange(len(labels)) if patients is None else patient_numbers(patients)
    return np.array([len(np.unique(owner[labels == c])) for c in range(classes)], dtype=np.int64)


def honest_interval(metric: str, value: float, bootstrap: Sequence[float], folds: Sequence[Counts]) -> list[float]:
    """The interval to state for a metric's mean over folds; NaN ends where nothing can be said.

    value: what was seen; bootstrap: the middle of its resamples; folds: the patients of each class in every fold that
    has the metric (one fold: a plain set).
    """
    nothing = [math.nan, math.nan]
    fewest = int(np.sum(folds, axis=0).min()) if len(folds) else 0
    if fewest < FEWEST or math.isnan(value) or math.isnan(bootstrap[0]):
        return nothing
    low, high = float(bootstrap[0]), float(bootstrap[1])
    if fewest >= FEW and high - low > NARROW:
        return [low, high]
    if metric == "auroc":
        return list(auroc_interval(value, folds))
    if (sure := _independent(metric, folds)) is not None:
        return list(wilson(value, sure))
    return [low, high] if high - low > NARROW else nothing


def _independent(metric: str, folds: Sequence[Counts]) -> float | None:
    """The number of independent patients with the variance of this mean of rates; None for other metrics."""
    if metric == "balanced_accuracy" or (len(folds[0]) > 2 and metric in ("sensitivity", "specificity")):
        shares = [1 / (len(folds) * len(counts)) for counts in folds for _ in counts]
        sizes = [n for counts in folds for n in counts]
    elif metric in ("sensitivity", "specificity"):
        shares, sizes = [1 / len(folds)] * len(folds), [counts[int(metric == "sensitivity")] for counts in folds]
    else:
        return None
    return 1 / sum(share**2 / max(1, n) for share, n in zip(shares, sizes, strict=True))


def auroc_interval(value: float, folds: Sequence[Counts]) -> tuple[float, float]:
    """Newcombe's interval of an AUROC, or of its mean over folds; of more than two classes one against the rest."""
    pairs = [(int(n), int(counts.sum() - n)) for counts in folds for n in (counts[1:] if len(counts) == 2 else counts)]
    pairs = [(a, b) for a, b in pairs if a and b]
    classes = len(pairs) / len(folds)

    def deviation(theta: float) -> float:
        # Classes one against the rest are not independent: the mean of their variances is at least that of the mean.
        return math.sqrt(sum(_variance(theta, a, b) for a, b in pairs) / (classes * len(folds) ** 2))

    return _edge(value, 0.0, deviation), _edge(value, 1.0, deviation)


def _variance(theta: float, positives: int, negatives: int) -> float:
    shared = (positives + negatives) / 2 - 1
    spread = 1 + shared * ((1 - theta) / (2 - theta) + theta / (1 + theta))
    return theta * (1 - theta) * spread / (positives * negatives)


def _edge(value: float, end: float, deviation: Callable[[float], float]) -> float:
    """The value between the one that was seen and an end of the scale that is 1.96 of its own deviations away."""
    near = value + math.copysign(min(1e-7, abs(end - value)), end - value)
    if abs(end - value) <= 1e-7 or abs(near - value) >= Z * deviation(near):
        return value
    far = end
    for _ in range(50):  # halved so often, the step is below the precision of a float
        middle = (near + far) / 2
        near, far = (middle, far) if abs(middle - value) < Z * deviation(middle) else (near, middle)
    return far

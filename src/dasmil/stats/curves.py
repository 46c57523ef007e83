"""Numbers behind the figures: ROC curves with a bootstrap band, binomial intervals, confusion counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasmil.stats.resample import resampled

Array = NDArray[np.float64]

Z = 1.959964  # 95 % of a normal distribution lie within so many standard deviations
GRID = np.linspace(0, 1, 101)
RESAMPLES = 200


@dataclass(frozen=True, eq=False)
class Roc:
    """True positive rates on a grid of false positive rates: of each seed, their mean, and its 95 % band.

    Of a cross-validation every rate is the mean over folds, so the area below is the mean AUROC.
    """

    fpr: Array
    mean: Array
    seeds: Sequence[Array]
    low: Array | None
    high: Array | None


def roc_curve(
    *folds: tuple[ArrayLike, Sequence[ArrayLike], Sequence[str] | None], resamples: int = RESAMPLES, seed: int = 0
) -> Roc | None:
    """The ROC curves of several seeds, averaged over folds; one fold: as they are.

    A fold is labels, the scores of each seed, and the patient of every bag (None: every bag has its own). Folds with
    one class only have no curve and are left out; None when none is left. The band is the 95 % interval of the mean
    curve when patients are resampled within their fold and class.
    """
    parts = []
    for number, (labels, scores, patients) in enumerate(folds):
        truth = np.asarray(labels).astype(bool)
        if truth.all() or not truth.any():
            continue
        drawn = resampled((~truth).astype(np.int64), patients, resamples, seed + number)
        weights = np.concatenate([np.ones((1, len(truth))), *drawn])
        parts.append(np.stack([_rates(truth, np.asarray(s, dtype=np.float64), weights) for s in scores]))
    if not parts:
        return None
    curves = np.stack([np.mean(same_seed, axis=0) for same_seed in zip(*parts)])
    mean = curves.mean(0)
    low, high = np.percentile(mean[1:], [2.5, 97.5], axis=0) if resamples else (None, None)
    return Roc(GRID, mean[0], list(curves[:, 0]), low, high)


def _rates(truth: NDArray[np.bool_], score: Array, weights: Array) -> Array:
    """True positive rate on the grid for each row of weights [draws, n] -> [draws, grid]; tied scores move together."""
    order = np.argsort(-score, kind="stable")
    last = np.flatnonzero(np.concatenate([np.diff(score[order]) != 0, [True]]))
    hits = np.cumsum(weights[:, order] * truth[order], axis=1)[:, last]
    misses = np.cumsum(weights[:, order] * ~truth[order], axis=1)[:, last]
    start = np.zeros((len(weights), 1))
    tpr = np.concatenate([start, hits / hits[:, -1:]], axis=1)
    fpr = np.concatenate([start, misses / misses[:, -1:]], axis=1)
    # Where the curve rises vertically, its upper end counts; np.interp takes the last of equal positions.
    return np.stack([np.interp(GRID, x, y) for x, y in zip(fpr, tpr)])


def wilson(share: float, n: float, z: float = Z) -> tuple[float, float]:
    """95 % interval of a frequency seen in n independent bags (Wilson's score interval)."""
    if n == 0:
        return 0.0, 1.0
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return min(centre - half, share), max(centre + half, share)


def confusion_counts(labels: ArrayLike, predictions: ArrayLike, classes: int) -> NDArray[np.int64]:
    """Counts [true class, predicted class]."""
    truth, predicted = np.asarray(labels, dtype=np.int64), np.asarray(predictions, dtype=np.int64)
    return np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(classes, classes)

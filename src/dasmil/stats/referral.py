"""Refer to a human: how right the model is on the bags that it keeps when the least certain ones are referred."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasmil.stats.metrics import RESAMPLES, _checked
from dasmil.stats.ranking import divide
from dasmil.stats.resample import resampled

Array = NDArray[np.float64]
SHARES = np.linspace(0, 0.9, 19)


@dataclass(frozen=True, eq=False)
class Referral:
    """Share of bags referred [points], accuracy on the others with its 95 % band."""

    referred: Array
    accuracy: Array
    low: Array
    high: Array

    def needed(self, accuracy: float) -> float | None:
        """The smallest share to refer with which the others reach this accuracy; None where no share does."""
        enough = np.flatnonzero(self.accuracy >= accuracy)
        return float(self.referred[enough[0]]) if len(enough) else None


def certainty(probabilities: ArrayLike, threshold: float | ArrayLike = 0.5) -> Array:
    """How far a bag is from being decided otherwise [n]: from the threshold, or the two likeliest classes apart.

    On either side of a threshold as a share of that side, so that 0 and 1 are equally certain.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim > 1:
        top = np.sort(p, axis=1)
        return top[:, -1] - top[:, -2]
    t = np.broadcast_to(np.asarray(threshold, dtype=np.float64), p.shape)
    above = np.divide(p - t, 1 - t, out=np.zeros_like(p), where=t < 1)
    below = np.divide(t - p, t, out=np.zeros_like(p), where=t > 0)
    return np.where(p >= t, above, below)


def referral_curve(
    labels: ArrayLike,
    probabilities: ArrayLike,
    patients: Sequence[str] | None = None,
    *,
    threshold: float | ArrayLike = 0.5,
    shares: ArrayLike = SHARES,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Referral:
    """Accuracy on the bags kept when a growing share, the least certain first, is referred; the band is over patients.

    Every resample refers its own share of its own bags.
    """
    y, p = _checked(labels, probabilities)
    sure = certainty(p, threshold)
    predicted = (p >= np.asarray(threshold)).astype(np.int64) if p.ndim == 1 else p.argmax(1)
    right = (predicted == y).astype(np.float64)
    order = np.argsort(-sure, kind="stable")
    shares = np.asarray(shares, dtype=np.float64)
    weights = np.concatenate([np.ones((1, len(y))), *resampled(y, patients, resamples, seed)])[:, order]
    kept, good = np.cumsum(weights, axis=1), np.cumsum(weights * right[order], axis=1)
    wanted = kept[:, -1:] * (1 - shares)
    found = np.empty((len(weights), len(shares)))
    for k in range(len(weights)):  # the last bag is kept in part, so that every point is of the share it names
        x, g = np.concatenate([[0.0], kept[k]]), np.concatenate([[0.0], good[k]])
        found[k] = divide(np.interp(wanted[k], x, g), wanted[k])
    low, high = np.nanpercentile(found[1:], [2.5, 97.5], axis=0) if resamples else (found[0], found[0])
    return Referral(shares, found[0], low, high)

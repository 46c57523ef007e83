"""How well a score ranks positives above negatives; every function takes weights, so that resamples are one call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

Array = NDArray[np.float64]


def auroc(scores: Array, positive: NDArray[np.bool_], weights: Array | None = None) -> Array:
    """Area under the ROC curve [draws], ties counted half; NaN where one class has no weight.

    scores, positive: [n]; weights: [draws, n] (for example bootstrap counts), None: every row counts once, one draw.
    """
    hits, misses = _by_score(scores, positive, weights)
    below = np.cumsum(misses, axis=1) - misses / 2
    return divide((hits * below).sum(1), hits.sum(1) * misses.sum(1))


def average_precision(scores: Array, positive: NDArray[np.bool_], weights: Array | None = None) -> Array:
    """Mean precision over the positives [draws], tied scores taken together; arguments as of ``auroc``."""
    hits, misses = (side[:, ::-1] for side in _by_score(scores, positive, weights))
    found, wrong = np.cumsum(hits, axis=1), np.cumsum(misses, axis=1)
    precision = np.divide(found, found + wrong, out=np.zeros_like(found), where=found + wrong > 0)
    return divide((hits * precision).sum(1), hits.sum(1))


def probabilities(logits: Array, classes: int) -> Array:
    """Of class 1 for two classes, else of every class (last dimension)."""
    return expit(logits) if classes == 2 else softmax(logits, axis=-1)


def divide(a: Array, b: Array) -> Array:
    """a / b, NaN where b is zero."""
    return np.divide(a, b, out=np.full_like(a, np.nan), where=b > 0)


def _by_score(scores: Array, positive: NDArray[np.bool_], weights: Array | None) -> tuple[Array, Array]:
    """Weights of positives and of negatives [draws, distinct scores], from the lowest score to the highest."""
    weights = np.ones((1, len(scores))) if weights is None else np.asarray(weights, dtype=np.float64)
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(scores[order]) > 0]))  # equal scores form one group
    ordered, truth = weights[:, order], positive[order].astype(bool)
    return np.add.reduceat(ordered * truth, starts, axis=1), np.add.reduceat(ordered * ~truth, starts, axis=1)

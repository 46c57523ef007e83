"""How near predicted numbers are to true ones: R2, mean absolute error, correlations, limits of agreement.

Every function takes weights of the bags [draws, n] (bootstrap counts), so that resamples are one call.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasmil.errors import InputError
from dasmil.stats.curves import Z
from dasmil.stats.ranking import divide

Array = NDArray[np.float64]
NUMERIC_METRICS = ("r2", "mae", "rmse", "pearson", "spearman")


def numeric_scores(truth: ArrayLike, predicted: ArrayLike, weights: Array | None = None) -> dict[str, Array]:
    """Every metric [draws]: r2, mae and rmse (in the target's unit), pearson, spearman.

    r2 is 1 - squared error / spread of the truth about its own mean: 0 for telling the mean, negative for worse. NaN
    where it has no value: truth (or, for correlations, prediction) that does not vary.
    """
    y, p = _checked(truth, predicted)
    w = np.ones((1, len(y))) if weights is None else np.asarray(weights, dtype=np.float64)
    error = w @ np.square(p - y)
    constant = np.full_like(w, np.nan)  # a draw of one value only has rounding errors for a spread
    varies = _varies(y, w)
    return {
        "r2": 1 - divide(error, np.where(varies, _covariance(_rows(y, w), _rows(y, w), w), 0)),
        "mae": divide(w @ np.abs(p - y), w.sum(1)),
        "rmse": np.sqrt(divide(error, w.sum(1))),
        "pearson": np.where(varies & _varies(p, w), _correlation(_rows(y, w), _rows(p, w), w), constant[:, 0]),
        "spearman": np.where(varies & _varies(p, w), _correlation(_ranks(y, w), _ranks(p, w), w), constant[:, 0]),
    }


def bland_altman(truth: ArrayLike, predicted: ArrayLike, weights: Array | None = None) -> dict[str, Array]:
    """Mean of prediction - truth and the limits between which 95 % of such differences lie [draws], in their unit.

    Bland and Altman, The Lancet 327, 1986: bias -/+ 1.96 standard deviations (n - 1) of the differences.
    """
    y, p = _checked(truth, predicted)
    w = np.ones((1, len(y))) if weights is None else np.asarray(weights, dtype=np.float64)
    count = w.sum(1)
    bias = divide(w @ (p - y), count)
    squares = (w * np.square((p - y) - bias[:, None])).sum(1)
    spread = Z * np.sqrt(divide(squares, count - 1))
    return {"bias": bias, "lower": bias - spread, "upper": bias + spread}


def _checked(truth: ArrayLike, predicted: ArrayLike) -> tuple[Array, Array]:
    y, p = np.asarray(truth, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if y.ndim != 1 or len(y) == 0 or p.shape != y.shape:
        raise InputError(f"{y.shape} targets and {p.shape} predictions: expected one of each per bag, at least one")
    if not np.isfinite(y).all():
        raise InputError(f"{int((~np.isfinite(y)).sum())} of {len(y)} targets are missing or infinite: leave them out")
    if not np.isfinite(p).all():
        raise InputError(f"{int((~np.isfinite(p)).sum())} predictions are NaN or infinite: the model diverged")
    return y, p


def _rows(values: Array, weights: Array) -> Array:
    return np.broadcast_to(values, weights.shape)


def _varies(values: Array, weights: Array) -> NDArray[np.bool_]:
    there = weights > 0
    rows = _rows(values, weights)
    return np.where(there, rows, -np.inf).max(1) > np.where(there, rows, np.inf).min(1)


def _covariance(a: Array, b: Array, w: Array) -> Array:
    """Weighted sum of products about the weighted means [draws]."""
    total = w.sum(1)
    a_mean, b_mean = divide((w * a).sum(1), total), divide((w * b).sum(1), total)
    return (w * (a - a_mean[:, None]) * (b - b_mean[:, None])).sum(1)


def _correlation(a: Array, b: Array, w: Array) -> Array:
    spread = np.sqrt(_covariance(a, a, w) * _covariance(b, b, w))
    return np.clip(divide(_covariance(a, b, w), spread), -1, 1)


def _ranks(values: Array, weights: Array) -> Array:
    """Ranks within each draw [draws, n], equal values at their mean rank, a bag that is drawn twice there twice."""
    _, level = np.unique(values, return_inverse=True)
    order = np.argsort(level, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(level[order]) > 0]))
    mass = np.add.reduceat(weights[:, order], starts, axis=1)
    return (np.cumsum(mass, axis=1) - mass / 2 + 0.5)[:, level]

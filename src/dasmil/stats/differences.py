"""One side against another on the same bags, over the folds of a cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasmil.stats.metrics import RESAMPLES, _checked, _weighted
from dasmil.stats.resample import interval, resampled
from dasmil.stats.small import FEWEST, class_patients

Part = tuple[ArrayLike, Sequence[ArrayLike], Sequence[ArrayLike], Sequence[str] | None]
"""A fold: labels, probabilities of the first side (one item per run), of the second, patients."""


def mean_difference(
    parts: Sequence[Part], metric: str = "auroc", *, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Any]:
    """Mean over folds of the first side's mean score minus the second's, both scored on the same resamples.

    One part is a plain set of bags. Folds that do not have the metric (one class only) are left out. Fewer than
    FEWEST patients of a class, over all folds, have no interval: they say nothing.
    """
    exact, draws, counts = [], [], []
    for k, (labels, first, second, patients) in enumerate(parts):
        y, _ = _checked(labels, first[0])
        sides = [[_checked(y, p)[1] for p in side] for side in (first, second)]

        def gap(
            weights: NDArray[np.float64],
            y: NDArray[np.int64] = y,
            sides: list[list[NDArray[np.float64]]] = sides,
        ) -> NDArray[np.float64]:
            a, b = (np.mean([_weighted(y, p, weights, 0.5)[metric] for p in side], axis=0) for side in sides)
            return a - b

        value = float(gap(np.ones((1, len(y))))[0])
        if np.isfinite(value):
            exact.append(value)
            draws.append(np.concatenate([gap(weights) for weights in resampled(y, patients, resamples, seed + k)]))
            counts.append(class_patients(y, patients, 2 if sides[0][0].ndim == 1 else sides[0][0].shape[1]))
    nothing = [float("nan")] * 2
    if not exact:
        return {"metric": metric, "difference": float("nan"), "interval": nothing}
    enough = int(np.sum(counts, axis=0).min()) >= FEWEST
    ends = interval(np.mean(draws, axis=0)) if enough else nothing
    return {"metric": metric, "difference": float(np.mean(exact)), "interval": ends}

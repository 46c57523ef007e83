"""AUROC of correlated scores without resampling: variances and covariances by patient, and tests that use them.

The placement values of DeLong, DeLong and Clarke-Pearson (Biometrics 44, 1988), summed within patients as Obuchowski
(Biometrics 53, 1997) does for clustered data; where every patient has one bag the two are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2, norm, rankdata

from dasmil.errors import InputError
from dasmil.stats.resample import patient_numbers

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Aurocs:
    """AUROCs [scores] of the same bags and their covariance [scores, scores]; patients of each class."""

    values: Array
    covariance: Array
    positives: int
    negatives: int


def aurocs(labels: ArrayLike, scores: Sequence[ArrayLike], patients: Sequence[str] | None = None) -> Aurocs:
    """AUROC of each score [n] and their covariance over patients; both classes must be there."""
    positive = np.asarray(labels).astype(bool)
    if positive.all() or not positive.any():
        raise InputError(f"all {len(positive)} bags are of one class: an AUROC needs both")
    owner = np.arange(len(positive)) if patients is None else patient_numbers(patients)
    m, n = int(positive.sum()), int((~positive).sum())
    table = np.stack([np.asarray(s, dtype=np.float64) for s in scores])
    ranks = np.stack([rankdata(s) for s in table])
    own = np.zeros_like(table)
    own[:, positive] = np.stack([rankdata(s) for s in table[:, positive]])
    own[:, ~positive] = np.stack([rankdata(s) for s in table[:, ~positive]])
    # Of a positive: share of negatives below it; of a negative: share of positives above it.
    place = np.where(positive, (ranks - own) / n, 1 - (ranks - own) / m)
    values = place[:, positive].mean(1)
    above = _by_patient(place - values[:, None], owner, positive)
    below = _by_patient(place - values[:, None], owner, ~positive)
    groups, others = len(np.unique(owner[positive])), len(np.unique(owner[~positive]))
    cross = above @ below.T
    covariance = (
        _corrected(groups) * (above @ above.T) / m**2
        + _corrected(others) * (below @ below.T) / n**2
        + (cross + cross.T) / (m * n)
    )
    return Aurocs(values, covariance, groups, others)


def _by_patient(values: Array, owner: NDArray[np.int64], rows: NDArray[np.bool_]) -> Array:
    count = int(owner.max()) + 1
    return np.stack([np.bincount(owner[rows], row[rows], count).astype(np.float64) for row in values])


def _corrected(groups: int) -> float:
    return groups / (groups - 1) if groups > 1 else math.nan


@dataclass(frozen=True)
class AurocComparison:
    """The AUROC of the first minus that of the second, its 95 % interval, and two-sided p; margin: tested one-sided.

    inferior_p: p of "worse by the margin or more"; below 0.025 the first is non-inferior.
    """

    difference: float
    low: float
    high: float
    p: float
    margin: float | None = None
    inferior_p: float | None = None

    @property
    def non_inferior(self) -> bool | None:
        """Whether the whole interval is above minus the margin; None without a margin."""
        return None if self.margin is None else self.low > -self.margin


def compare_aurocs(
    labels: ArrayLike,
    first: ArrayLike,
    second: ArrayLike,
    patients: Sequence[str] | None = None,
    *,
    margin: float | None = None,
) -> AurocComparison:
    """DeLong's test of two scores of the same bags, by patient; margin: also test for non-inferiority."""
    if margin is not None and not 0 < margin < 1:
        raise InputError(f"the non-inferiority margin is {margin:g}, expected a difference of AUROC such as 0.05")
    found = aurocs(labels, [first, second], patients)
    difference = float(found.values[0] - found.values[1])
    one = np.array([1.0, -1.0])
    spread = math.sqrt(max(0.0, float(one @ found.covariance @ one)))
    if not spread > 1e-12:
        if abs(difference) < 1e-12:
            return AurocComparison(0.0, 0.0, 0.0, 1.0, margin, None if margin is None else 0.0)
        raise InputError("both scores separate these bags alike for every patient: too few bags to compare them")
    p = float(2 * norm.sf(abs(difference) / spread))
    reach = float(norm.isf(0.025)) * spread
    worse = None if margin is None else float(norm.sf((difference + margin) / spread))
    return AurocComparison(difference, difference - reach, difference + reach, p, margin, worse)


def heterogeneity(values: Sequence[float], variances: Sequence[float]) -> float:
    """p of Cochran's Q: whether independent estimates differ by more than chance; NaN for fewer than two."""
    known = [(v, s) for v, s in zip(values, variances, strict=True) if math.isfinite(v) and s > 0]
    if len(known) < 2:
        return math.nan
    v, weight = np.array([a for a, _ in known]), np.array([1 / b for _, b in known])
    q = float((weight * (v - (weight * v).sum() / weight.sum()) ** 2).sum())
    return float(chi2.sf(q, len(known) - 1))

"""Whether anything was learned that shuffled patients would not give: a permutation test of all linear candidates.

The outcomes of patients are permuted. The statistic is the largest correlation of outcomes with what any candidate with
any ridge predicts out of fold, so the choice among candidates and ridges is part of the test, and its level is exact
whatever the features are. A ridge is linear in the outcomes, so all permutations are one matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from dasmil.candidates.folds import FOLDS
from dasmil.candidates.objective import Objective
from dasmil.candidates.ridge import Coordinates

Array = NDArray[np.float64]
PERMUTATIONS = 199
LEVEL = 0.05
RIDGES = (0.01, 0.1, 1.0)
"""In units of the mean variance of a patient's numbers."""


@dataclass(frozen=True)
class Evidence:
    """p: of the permutation test over patients; patients: how many; permutations: how many shuffles."""

    p: float
    patients: int
    permutations: int

    @property
    def found(self) -> bool:
        """Whether the cohort shows more than shuffled outcomes do."""
        return self.p <= LEVEL

    def record(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)


def evidence_of(
    numbers: Mapping[str, Array],
    objective: Objective,
    patients: Sequence[str],
    trained: Sequence[Array],
    constant: Array,
    seed: int = 0,
) -> Evidence:
    """The test over these numbers of bags, by candidate [bags, p].

    trained: out-of-fold outputs of all trained candidates, where one of them was kept (empty: a linear one was). Their
    own test is whether the outputs order held-out patients. The smallest of their p-values counts as many times as
    there are such candidates, and twice the smaller p-value of both tests is the result.
    """
    left = -objective.gradient(np.tile(objective.guess(), (len(patients), 1))) @ objective.link.T
    rows = _patient_means(left, patients)
    kernels = [_kernel(_patient_means(values, patients)) for values in numbers.values()]
    p = permutation_p([kernel for kernel in kernels if kernel is not None], rows, seed)
    if trained:
        inverse = np.linalg.pinv(objective.link)
        own = [_patient_means((outputs - constant) @ inverse, patients) for outputs in trained]
        p = min(1.0, 2 * min(p, len(own) * min(rank_p(outputs, rows) for outputs in own)))
    return Evidence(p, len(rows), PERMUTATIONS)


def permutation_p(kernels: Sequence[Array], outcomes: Array, seed: int = 0, permutations: int = PERMUTATIONS) -> float:
    """How often shuffled outcomes [patients, m] are predicted as well out of fold as these, from kernels [n, n]."""
    n = len(outcomes)
    rng = np.random.default_rng([seed, 7])
    orders = np.stack([np.arange(n), *(rng.permutation(n) for _ in range(permutations))])
    y = outcomes - outcomes.mean(0)
    y = y / np.maximum(np.sqrt(np.square(y).sum(0)), 1e-12)
    shuffled = y[orders].transpose(1, 0, 2).reshape(n, -1)
    fold = rng.permutation(np.arange(n) % min(FOLDS, n))
    best = np.full(permutations + 1, -np.inf)
    for kernel in kernels:
        for ridge in RIDGES:
            said = np.zeros_like(shuffled)
            for k in range(fold.max() + 1):
                held, rest = np.flatnonzero(fold == k), np.flatnonzero(fold != k)
                inner = kernel[np.ix_(rest, rest)] + ridge * len(rest) * np.eye(len(rest))
                said[held] = kernel[np.ix_(held, rest)] @ np.linalg.solve(
                    inner, shuffled[rest] - shuffled[rest].mean(0)
                )
            agree = (said * shuffled).sum(0) / np.maximum(np.sqrt(np.square(said).sum(0)), 1e-12)
            best = np.maximum(best, agree.reshape(permutations + 1, -1).max(1))
    return float((best >= best[0] - 1e-12).mean())


def rank_p(outputs: Array, outcomes: Array) -> float:
    """How often outputs [patients, m] that say nothing would agree so well with the outcomes, by their ranks."""
    found = []
    for said, asked in zip(outputs.T, outcomes.T, strict=True):
        ranks, y = rankdata(said) - (len(said) + 1) / 2, asked - asked.mean()
        spread = np.sqrt(np.square(ranks).sum() * np.square(y).sum() / max(1, len(y) - 1))
        found.append(float(norm.sf((ranks @ y) / max(float(spread), 1e-12))))
    return min(1.0, len(found) * min(found))


def _kernel(values: Array) -> Array | None:
    rows = Coordinates.of(values).rows
    if not rows.shape[1]:
        return None
    kernel = rows @ rows.T
    return kernel / max(float(np.trace(kernel)) / len(kernel), 1e-12)


def _patient_means(values: Array, patients: Sequence[str]) -> Array:
    """The mean over the bags of every patient [patients, ...]."""
    _, place, count = np.unique(np.asarray(patients), return_inverse=True, return_counts=True)
    sums = np.zeros((len(count), values.shape[1]))
    np.add.at(sums, place, values)
    return sums / count[:, None]

"""The fast path of `summarise` for many seeds and many tables: mean and spread over seeds, intervals, differences.

The same resamples and equal results, for two metrics only: balanced accuracy and AUROC are averages over bags and over
pairs of bags, so the mean over seeds is taken first and all resamples are two matrix products. A check of all tables of
the paper takes seconds instead of minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.stats.metrics import RESAMPLES
from dasmil.stats.resample import interval, resampled

METRICS = ("balanced_accuracy", "auroc")

Logits = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class PairScores:
    """What one or several runs do on a set of bags, averaged over the runs.

    right: how often each bag is classified rightly [n]; wins: how often positive i scores above negative j [n+, n-].
    """

    positive: NDArray[np.bool_]
    right: NDArray[np.float64]
    wins: NDArray[np.floating[Any]]

    @staticmethod
    def of(labels: Labels, logits: Logits) -> PairScores:
        logits = np.atleast_2d(logits).astype(np.float64)
        positive = np.asarray(labels == 1)
        right = ((logits >= 0) == positive).mean(0)
        wins = np.zeros((int(positive.sum()), int((~positive).sum())), np.float32)
        for row in logits:
            a, b = row[positive][:, None], row[~positive][None]
            wins += (a > b) + np.float32(0.5) * (a == b)
        return PairScores(positive, right, wins / len(logits))

    def minus(self, other: PairScores) -> PairScores:
        """The difference of two sides on the same bags."""
        return PairScores(self.positive, self.right - other.right, self.wins - other.wins)

    def scores(self, positives: NDArray[np.float64], negatives: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Both metrics under weights of the positive bags [draws, n+] and of the negative ones [draws, n-]."""
        by_class = [
            w @ self.right[side] / w.sum(1) for w, side in ((positives, self.positive), (negatives, ~self.positive))
        ]
        pairs = ((positives.astype(np.float32) @ self.wins) * negatives).sum(1)
        return {
            "balanced_accuracy": (by_class[0] + by_class[1]) / 2,
            "auroc": pairs / (positives.sum(1) * negatives.sum(1)),
        }


def _once(labels: Labels) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.ones((1, int((labels == 1).sum()))), np.ones((1, int((labels == 0).sum())))


def _resamples(labels: Labels) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights of the positive and the negative bags in every bootstrap resample; each class keeps its size."""
    drawn = np.concatenate(list(resampled(labels.astype(np.int64), None, RESAMPLES, 0)))
    return drawn[:, labels == 1], drawn[:, labels == 0]


def scores(labels: Labels, logits: Logits) -> dict[str, dict[str, Any]]:
    """Per metric: per_seed, mean, std (n - 1), and the 95 % interval of the mean over seeds."""
    per_seed = [PairScores.of(labels, row).scores(*_once(labels)) for row in logits]
    draws = PairScores.of(labels, logits).scores(*_resamples(labels))
    found: dict[str, dict[str, Any]] = {}
    for metric in METRICS:
        values = np.array([s[metric][0] for s in per_seed])
        found[metric] = {
            "per_seed": values.tolist(),
            "mean": float(values.mean()),
            "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
            "interval": interval(draws[metric]),
        }
    return found


def difference(labels: Labels, first: Logits, second: Logits) -> dict[str, dict[str, Any]]:
    """Per metric: mean of the first runs minus mean of the second, with a 95 % interval from paired resamples."""
    gap = PairScores.of(labels, first).minus(PairScores.of(labels, second))
    exact, draws = gap.scores(*_once(labels)), gap.scores(*_resamples(labels))
    return {
        metric: {
            "difference": float(exact[metric][0]),
            "interval": interval(draws[metric]),
        }
        for metric in METRICS
    }

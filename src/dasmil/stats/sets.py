"""Sets of bags with what scores runs on them, one kind for each task: follow-up, numbers, classes.

A scorer goes from weights of the bags [draws, n] to metrics [draws]; summaries.py draws patients for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasmil.stats.concordance import auroc_at, harrell, uno
from dasmil.stats.follow_up import FollowUp
from dasmil.stats.metrics import _checked, _weighted
from dasmil.stats.numeric import bland_altman, numeric_scores
from dasmil.stats.resample import patient_numbers
from dasmil.stats.small import Counts, class_patients

Array = NDArray[np.float64]
Scorer = Callable[[Array], dict[str, Array]]
SURVIVAL_METRICS = ("c_index", "c_index_uno")
"""What every survival model has."""


@dataclass(frozen=True, eq=False)
class ScoredSet:
    """A set of bags (all, or a fold): what scores each run on it, and the patients that are drawn.

    strata [n]: resamples keep their numbers of patients (events and censored; classes; zeros for numbers). patients: of
    every bag, None where every bag has its own. fewest: patients of the kind that limits what can be said (with the
    event; of the rarest class). ensemble: scores the runs taken together. classes: patients of each class. limits: of
    metrics that other patients limit than ``fewest``.
    """

    runs: Sequence[Scorer]
    strata: NDArray[np.int64]
    patients: Sequence[str] | None
    fewest: int
    ensemble: Scorer | None = None
    classes: Counts | None = None
    limits: Mapping[str, int] = field(default_factory=dict)

    def fewest_of(self, metric: str) -> int:
        """Patients that limit what can be said of a metric."""
        return self.limits.get(metric, self.fewest)


def survival_scores(
    follow: FollowUp,
    risk: Array,
    weights: Array | None = None,
    *,
    horizons: Sequence[float] = (),
    reference: FollowUp | None = None,
) -> dict[str, Array]:
    """Metrics [draws] of a risk [n], higher is earlier: c_index (Harrell), c_index_uno, auroc_at_t at each horizon t.

    reference: the bags that censoring weights are estimated from, None: the scored ones.
    """
    weights = np.ones((1, len(follow))) if weights is None else weights
    found = {
        "c_index": harrell(follow, risk, weights),
        "c_index_uno": uno(follow, risk, weights, reference=reference),
    }
    for time in horizons:
        found[f"auroc_at_{time:g}"] = auroc_at(follow, risk, time, weights, reference=reference)
    return found


def survival_set(
    follow: FollowUp,
    risks: Sequence[Array],
    patients: Sequence[str] | None = None,
    *,
    horizons: Sequence[float] = (),
    reference: FollowUp | None = None,
) -> ScoredSet:
    """Bags with follow-up, scored by ``survival_scores``; risks [n]: one of each run, the ensemble is their mean."""

    def scorer(risk: Array) -> Scorer:
        return lambda w: survival_scores(follow, risk, w, horizons=horizons, reference=reference)

    together = np.mean(np.asarray(risks, dtype=np.float64), axis=0)
    events = _owners(follow.events, patients)
    return ScoredSet([scorer(risk) for risk in risks], follow.strata, patients, events, scorer(together))


def numeric_set(truth: ArrayLike, predictions: Sequence[ArrayLike], patients: Sequence[str] | None = None) -> ScoredSet:
    """Bags with a number, scored by ``numeric_scores`` and ``bland_altman``; the ensemble is the mean prediction."""
    y = np.asarray(truth, dtype=np.float64)

    def scorer(predicted: ArrayLike) -> Scorer:
        return lambda w: numeric_scores(y, predicted, w) | bland_altman(y, predicted, w)

    together = np.mean([np.asarray(p, dtype=np.float64) for p in predictions], axis=0)
    strata, all_bags = np.zeros(len(y), np.int64), np.ones(len(y), dtype=bool)
    return ScoredSet([scorer(p) for p in predictions], strata, patients, _owners(all_bags, patients), scorer(together))


def class_set(
    labels: ArrayLike,
    probabilities: Sequence[ArrayLike],
    thresholds: Sequence[float],
    patients: Sequence[str] | None = None,
) -> ScoredSet:
    """Bags with a class, scored as by ``summarise``; the ensemble is the mean probability, its threshold their mean."""
    y, _ = _checked(labels, probabilities[0])

    def scorer(probability: ArrayLike, threshold: float) -> Scorer:
        p = _checked(y, probability)[1]
        return lambda w: _weighted(y, p, w, threshold)

    together = np.mean([np.asarray(p, dtype=np.float64) for p in probabilities], axis=0)
    runs = [scorer(p, t) for p, t in zip(probabilities, thresholds, strict=True)]
    counts = class_patients(y, patients, 2 if together.ndim == 1 else together.shape[1])
    return ScoredSet(runs, y, patients, int(counts.min()), scorer(together, float(np.mean(thresholds))), counts)


def _owners(rows: NDArray[np.bool_], patients: Sequence[str] | None) -> int:
    owner = np.arange(len(rows)) if patients is None else patient_numbers(patients)
    return len(np.unique(owner[rows]))

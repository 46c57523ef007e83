"""Sets of bags with what scores runs on them, one kind for each task: follow-up, numbers, classes.

A scorer goes from weights of the bags [draws, n] to metrics [draws]; summaries.py draws patients for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasmil.errors import InputError
from dasmil.stats.brier import brier_at, integrated, kaplan_meier_brier
from dasmil.stats.concordance import auroc_at, harrell, uno
from dasmil.stats.follow_up import FollowUp, step
from dasmil.stats.metrics import _checked, _weighted
from dasmil.stats.numeric import bland_altman, numeric_scores
from dasmil.stats.resample import patient_numbers
from dasmil.stats.small import Counts, class_patients

Array = NDArray[np.float64]
Scorer = Callable[[Array], dict[str, Array]]
SURVIVAL_METRICS = ("c_index", "c_index_uno")
"""What every survival model has; with predicted curves there are more, see ``survival_scores``."""


@dataclass(frozen=True, eq=False)
class ScoredSet:
    """A set of bags (all, or a fold): what scores each run on it, and the patients that are drawn.

    strata [n]: resamples keep their numbers of patients (events and censored; classes; zeros for numbers). patients: of
    every bag, None where every bag has its own. fewest: patients of the kind that limits what can be said (with the
    event; of the rarest class). ensemble: scores the runs taken together. classes: patients of each class.
    """

    runs: Sequence[Scorer]
    strata: NDArray[np.int64]
    patients: Sequence[str] | None
    fewest: int
    ensemble: Scorer | None = None
    classes: Counts | None = None


@dataclass(frozen=True, eq=False)
class SurvivalPrediction:
    """What a model says of bags: a risk [n], higher is earlier, and the share without the event [n, times] at times."""

    risk: Array
    survival: Array | None = None
    times: Array | None = None

    def survival_at(self, times: ArrayLike) -> Array:
        """The predicted share without the event at any times [n, times], constant between those that are known."""
        if self.survival is None or self.times is None:
            raise InputError("this prediction has a risk but no survival curve")
        wanted = np.atleast_1d(np.asarray(times, dtype=np.float64))
        return step(np.asarray(self.times, dtype=np.float64), np.asarray(self.survival, dtype=np.float64), wanted)


def survival_scores(
    follow: FollowUp,
    prediction: SurvivalPrediction,
    weights: Array | None = None,
    *,
    horizons: Sequence[float] = (),
    grid: Array | None = None,
    reference: FollowUp | None = None,
) -> dict[str, Array]:
    """Every survival metric [draws]: c_index (Harrell), c_index_uno, and at each horizon t auroc_at_t.

    With curves also brier_at_t, and over the times of ``grid`` integrated_brier, that of Kaplan-Meier
    (integrated_brier_km) and brier_skill = 1 - their ratio: above 0 the model tells more than one curve for all.
    reference: the bags that censoring weights and Kaplan-Meier are estimated from, None: the scored ones.
    """
    weights = np.ones((1, len(follow))) if weights is None else weights
    found = {
        "c_index": harrell(follow, prediction.risk, weights),
        "c_index_uno": uno(follow, prediction.risk, weights, reference=reference),
    }
    curves = prediction.survival is not None
    for time in horizons:
        risk = 1 - prediction.survival_at(time)[:, 0] if curves else prediction.risk
        found[f"auroc_at_{time:g}"] = auroc_at(follow, risk, time, weights, reference=reference)
    if curves:
        for time in horizons:
            at, told = np.array([time]), prediction.survival_at(time)
            found[f"brier_at_{time:g}"] = brier_at(follow, told, at, weights, reference=reference)[:, 0]
        if grid is not None and len(grid):
            told = prediction.survival_at(grid)
            own = integrated(brier_at(follow, told, grid, weights, reference=reference), grid)
            km = integrated(kaplan_meier_brier(follow, grid, weights, reference=reference), grid)
            skill = 1 - np.divide(own, km, out=np.full_like(own, np.nan), where=km > 0)
            found |= {"integrated_brier": own, "integrated_brier_km": km, "brier_skill": skill}
    return found


def survival_set(
    follow: FollowUp,
    predictions: Sequence[SurvivalPrediction],
    patients: Sequence[str] | None = None,
    *,
    horizons: Sequence[float] = (),
    grid: Array | None = None,
    reference: FollowUp | None = None,
) -> ScoredSet:
    """Bags with follow-up, scored by ``survival_scores``; the ensemble is the mean risk and the mean curve of runs."""

    def scorer(prediction: SurvivalPrediction) -> Scorer:
        return lambda w: survival_scores(follow, prediction, w, horizons=horizons, grid=grid, reference=reference)

    together = SurvivalPrediction(np.mean([p.risk for p in predictions], axis=0))
    if all(p.survival is not None for p in predictions):
        times = np.unique(np.concatenate([np.asarray(p.times, dtype=np.float64) for p in predictions]))
        curve = np.mean([p.survival_at(times) for p in predictions], axis=0)
        together = SurvivalPrediction(together.risk, curve, times)
    events = _owners(follow.events, patients)
    return ScoredSet([scorer(p) for p in predictions], follow.strata, patients, events, scorer(together))


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

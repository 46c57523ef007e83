"""Scores of predictions, each with a bootstrap interval; all resamples are scored at once, as weights of the bags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasmil.errors import InputError
from dasmil.stats.ranking import auroc, average_precision, divide
from dasmil.stats.resample import interval, patient_numbers, resampled
from dasmil.stats.small import class_patients, honest_interval

Array = NDArray[np.float64]

RESAMPLES = 1000
CALIBRATION_BINS = 10
METRICS = (
    "balanced_accuracy", "auroc", "average_precision", "f1", "sensitivity", "specificity", "brier", "calibration_error",
)  # fmt: skip


def score(labels: ArrayLike, probabilities: ArrayLike, *, threshold: float = 0.5) -> dict[str, float]:
    """Every metric of one set of predictions.

    probabilities: [n] of class 1, or [n, classes] that sum to 1 (then scores are means over the classes, one against
    the rest). Balanced accuracy and F1 are at 0.5 (or the largest class); sensitivity and specificity at ``threshold``.
    A metric that needs both classes is NaN when only one is there.
    """
    y, p = _checked(labels, probabilities)
    return {name: float(value[0]) for name, value in _weighted(y, p, np.ones((1, len(y))), threshold).items()}


def choose_threshold(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """The threshold with the best balanced accuracy, halfway between two scores; of equals the one nearest 0.5."""
    y, p = _checked(labels, probabilities)
    if p.ndim > 1:
        raise InputError("a threshold is chosen for two classes only; with more, the largest probability decides")
    if y.min() == y.max():
        return 0.5
    values = np.unique(p)
    candidates = np.concatenate([[0.5], (values[1:] + values[:-1]) / 2])
    order = np.argsort(p, kind="stable")
    below = np.searchsorted(p[order], candidates, side="left")  # predicted negative: p < threshold
    positives_below = np.concatenate([[0], np.cumsum(y[order])])[below]
    positives = y.sum()
    balanced = (1 - positives_below / positives + (below - positives_below) / (len(y) - positives)) / 2
    best = np.flatnonzero(balanced >= balanced.max() - 1e-12)
    return float(candidates[best[np.argmin(np.abs(candidates[best] - 0.5))]])


def calibration_curve(
    labels: ArrayLike, probabilities: ArrayLike, patients: Sequence[str] | None = None
) -> list[dict[str, float]]:
    """Predicted against observed frequency in ten equal bins of the probability; empty bins are left out.

    With more than two classes: confidence of the predicted class against how often it was right.
    """
    y, p = _checked(labels, probabilities)
    owner = np.arange(len(y)) if patients is None else patient_numbers(patients)
    y, p = _top_label(y, p)
    index = _bins(p)
    rows = []
    for b in np.unique(index):
        inside = index == b
        rows.append(
            {
                "from": b / CALIBRATION_BINS,
                "to": (b + 1) / CALIBRATION_BINS,
                "predicted": float(p[inside].mean()),
                "observed": float(y[inside].mean()),
                "n": int(inside.sum()),
                "patients": len(np.unique(owner[inside])),
            }
        )
    return rows


def summarise(
    labels: ArrayLike,
    probabilities: Sequence[ArrayLike],
    thresholds: Sequence[float],
    *,
    patients: Sequence[str] | None = None,
    ensemble_threshold: float = 0.5,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """Scores of several runs on the same bags: per run, mean, standard deviation, interval, and of their ensemble.

    The interval is of the mean over runs, under resampling of the patients with all their bags: it says how far this
    set of bags can be trusted; the standard deviation says how much a new seed changes. Of few patients it is a score
    interval, or none (stats/small.py); fewest: the patients of the rarest class. The ensemble is the mean probability.
    patients: of every bag, None where every bag has its own.
    """
    y, _ = _checked(labels, probabilities[0])
    runs = [_checked(y, p)[1] for p in probabilities]
    mean_probability = np.stack(runs, axis=1).mean(1)
    per_run = [score(y, p, threshold=t) for p, t in zip(runs, thresholds, strict=True)]
    ensemble = score(y, mean_probability, threshold=ensemble_threshold)
    draws: dict[str, list[Array]] = {name: [] for name in METRICS}
    ensemble_draws: dict[str, list[Array]] = {name: [] for name in METRICS}
    for weights in resampled(y, patients, resamples, seed):
        scored = [_weighted(y, p, weights, t) for p, t in zip(runs, thresholds, strict=True)]
        together = _weighted(y, mean_probability, weights, ensemble_threshold)
        for name in METRICS:
            draws[name].append(np.mean([s[name] for s in scored], axis=0))
            ensemble_draws[name].append(together[name])
    values = {name: np.array([run[name] for run in per_run]) for name in METRICS}
    mean = {name: float(v.mean()) for name, v in values.items()}
    counts = class_patients(y, patients, 2 if mean_probability.ndim == 1 else mean_probability.shape[1])

    def stated(seen: dict[str, float], found: dict[str, list[Array]]) -> dict[str, list[float]]:
        return {name: honest_interval(name, seen[name], interval(d), [counts]) for name, d in found.items()}

    return {
        "n": len(y),
        "patients": len(y) if patients is None else len(set(patients)),
        "fewest": int(counts.min()),
        "positives": int((y == 1).sum()),
        "classes": {str(c): int((y == c).sum()) for c in np.unique(y)},
        "per_seed": per_run,
        "mean": mean,
        "std": {name: float(v.std(ddof=1)) if len(v) > 1 else 0.0 for name, v in values.items()},
        "interval": stated(mean, draws),
        "ensemble": {**ensemble, "interval": stated(ensemble, ensemble_draws)},
        "calibration": calibration_curve(y, mean_probability, patients),
    }


def mean_interval(
    parts: Sequence[tuple[ArrayLike, Sequence[ArrayLike], Sequence[float], Sequence[str] | None]],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, list[float]]:
    """Interval of every metric's mean over folds, each (labels, probabilities per run, thresholds, patients).

    Patients are resampled within their fold. A metric leaves out folds that do not have it (NaN: one class only).
    """
    per_fold: dict[str, list[Array]] = {name: [] for name in METRICS}
    seen: list[dict[str, float]] = []
    counts: list[NDArray[np.int64]] = []
    for k, (labels, probabilities, thresholds, patients) in enumerate(parts):
        draws: dict[str, list[Array]] = {name: [] for name in METRICS}
        y, _ = _checked(labels, probabilities[0])
        for weights in resampled(y, patients, resamples, seed + k):
            scored = [_weighted(*_checked(y, p), weights, t) for p, t in zip(probabilities, thresholds, strict=True)]
            for name in METRICS:
                draws[name].append(np.mean([s[name] for s in scored], axis=0))
        for name in METRICS:
            per_fold[name].append(np.concatenate(draws[name]))
        runs = [score(y, p, threshold=t) for p, t in zip(probabilities, thresholds, strict=True)]
        seen.append({name: float(np.mean([run[name] for run in runs])) for name in METRICS})
        p = np.asarray(probabilities[0])
        counts.append(class_patients(y, patients, 2 if p.ndim == 1 else p.shape[1]))
    found: dict[str, list[float]] = {}
    for name, folds in per_fold.items():
        known = [k for k, draws in enumerate(folds) if not np.isnan(draws).all()]
        if not known:
            found[name] = [float("nan"), float("nan")]
            continue
        middle = interval(sum((folds[k] / len(known) for k in known), np.zeros(resamples)))
        mean = float(np.mean([seen[k][name] for k in known]))
        found[name] = honest_interval(name, mean, middle, [counts[k] for k in known])
    return found


def bootstrap_difference(
    labels: ArrayLike,
    first: Sequence[ArrayLike],
    second: Sequence[ArrayLike],
    metric: str,
    *,
    patients: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """Mean score of the first runs minus that of the second on the same bags, both scored on the same resamples.

    patients: of every bag, None where every bag has its own; they are what is resampled.
    """
    if metric not in METRICS:
        raise InputError(f"unknown metric {metric!r}. Known: {', '.join(METRICS)}")
    y, _ = _checked(labels, first[0])
    sides = [[_checked(y, p)[1] for p in side] for side in (first, second)]

    def gap(weights: Array) -> Array:
        a, b = (np.mean([_weighted(y, p, weights, 0.5)[metric] for p in side], axis=0) for side in sides)
        return a - b

    draws = [gap(weights) for weights in resampled(y, patients, resamples, seed)]
    share = float((np.concatenate(draws) > 0).mean())
    return {
        "metric": metric,
        "difference": float(gap(np.ones((1, len(y))))[0]),
        "interval": interval(draws),
        "first_better": share,
    }


def _checked(labels: ArrayLike, probabilities: ArrayLike) -> tuple[NDArray[np.int64], Array]:
    y = np.asarray(labels, dtype=np.int64)
    p = np.asarray(probabilities, dtype=np.float64)
    if y.ndim != 1 or len(y) == 0 or len(p) != len(y):
        raise InputError(
            f"{y.shape} labels and {p.shape} probabilities: expected one row of each per bag, at least one"
        )
    if not np.isfinite(p).all():
        raise InputError(f"{int((~np.isfinite(p)).sum())} predictions are NaN or infinite: the model diverged")
    classes = 2 if p.ndim == 1 else p.shape[1]
    if y.min() < 0 or y.max() >= classes:
        wrong = y.min() if y.min() < 0 else y.max()
        raise InputError(
            f"a bag has the label {wrong}, but the predictions are of {classes} classes: expected labels 0 to "
            f"{classes - 1}; number the classes as in training"
        )
    return y, p


def _weighted(y: NDArray[np.int64], p: Array, w: Array, threshold: float) -> dict[str, Array]:
    """Every metric under each row of the weights w [draws, n]: arrays [draws]."""
    calibration = _calibration_error(y, p, w)
    if p.ndim == 1:
        at_half = _counts(y == 1, p >= 0.5, w)
        at_threshold = _counts(y == 1, p >= threshold, w)
        return {
            "balanced_accuracy": (at_half.sensitivity + at_half.specificity) / 2,
            "auroc": auroc(p, y == 1, w),
            "average_precision": average_precision(p, y == 1, w),
            "f1": at_half.f1,
            "sensitivity": at_threshold.sensitivity,
            "specificity": at_threshold.specificity,
            "brier": w @ np.square(p - y) / w.sum(1),
            "calibration_error": calibration,
        }
    predicted = p.argmax(1)
    classes = range(p.shape[1])
    counts = [_counts(y == c, predicted == c, w) for c in classes]

    def over_classes(values: list[Array]) -> Array:
        return np.mean(values, axis=0)

    one_hot = np.eye(p.shape[1])[y]
    return {
        "balanced_accuracy": over_classes([c.sensitivity for c in counts]),
        "auroc": over_classes([auroc(p[:, c], y == c, w) for c in classes]),
        "average_precision": over_classes([average_precision(p[:, c], y == c, w) for c in classes]),
        "f1": over_classes([c.f1 for c in counts]),
        "sensitivity": over_classes([c.sensitivity for c in counts]),
        "specificity": over_classes([c.specificity for c in counts]),
        "brier": w @ np.square(p - one_hot).sum(1) / w.sum(1),
        "calibration_error": calibration,
    }


class _counts:
    """Weighted confusion counts of a yes/no prediction."""

    def __init__(self, truth: NDArray[np.bool_], predicted: NDArray[np.bool_], w: Array) -> None:
        tp, fn = w @ (truth & predicted), w @ (truth & ~predicted)
        fp, tn = w @ (~truth & predicted), w @ (~truth & ~predicted)
        self.sensitivity = divide(tp, tp + fn)
        self.specificity = divide(tn, tn + fp)
        self.f1 = np.where(tp + fp + fn > 0, divide(2 * tp, 2 * tp + fp + fn), 0.0)


def _top_label(y: NDArray[np.int64], p: Array) -> tuple[NDArray[np.int64], Array]:
    if p.ndim == 1:
        return y, p
    return (p.argmax(1) == y).astype(np.int64), p.max(1)


def _bins(p: Array) -> NDArray[np.int64]:
    return np.clip((p * CALIBRATION_BINS).astype(np.int64), 0, CALIBRATION_BINS - 1)


def _calibration_error(y: NDArray[np.int64], p: Array, w: Array) -> Array:
    """Expected calibration error: mean over bags of |observed - predicted| of the bag's bin."""
    y, p = _top_label(y, p)
    member = np.eye(CALIBRATION_BINS)[_bins(p)]
    return np.abs((w * (y - p)) @ member).sum(1) / w.sum(1)

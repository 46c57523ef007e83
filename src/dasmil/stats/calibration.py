"""Calibration of predicted probabilities: slope, intercept, expected events, calibration error and Brier score.

The logistic model of Cox (Biometrika 45, 1958): logit P(y = 1) = intercept + slope logit(p). A perfectly calibrated
model has slope 1 and intercept 0; a slope below 1 means predictions that are too extreme, which is what overfitting
does. Calibration-in-the-large is the intercept when the slope is held at 1. Intervals resample patients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from dasmil.stats.metrics import CALIBRATION_BINS, RESAMPLES, _bins, _calibration_error, _checked
from dasmil.stats.ranking import divide
from dasmil.stats.resample import interval, patient_numbers, resampled
from dasmil.stats.small import FEWEST, NARROW, class_patients

Array = NDArray[np.float64]

SMALLEST = 1e-6
"""Probabilities are kept this far from 0 and 1, whose logits are infinite."""
STEEPEST = 50.0
"""A slope above this means that the classes are separated and no finite slope fits."""
LOST_DRAWS = 0.1
"""A figure whose resamples fail more often than this has no interval."""

FIGURES = ("slope", "intercept", "in_the_large", "expected_over_observed", "brier", "calibration_error")


@dataclass(frozen=True)
class Calibration:
    """How well probabilities of one class are calibrated: figures by name as (value, low, high), NaN where none.

    The calibration error has no interval, because its estimate is too high by an amount that resampling repeats:
    by_chance says which values (median, 95th percentile) a perfectly calibrated model reaches on as many patients.
    bins: predicted against observed frequency; problem: why slope and intercept are missing, else empty.
    """

    n: int
    patients: int
    events: int
    values: dict[str, tuple[float, float, float]]
    bins: list[dict[str, float]]
    by_chance: tuple[float, float]
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "n": self.n, "patients": self.patients, "events": self.events,
            "values": {name: list(found) for name, found in self.values.items()}, "bins": self.bins,
            "by_chance": list(self.by_chance), "problem": self.problem,
        }  # fmt: skip


def logits(probability: ArrayLike) -> Array:
    """log(p / (1 - p)), with p kept a millionth from 0 and 1."""
    p = np.clip(np.asarray(probability, dtype=np.float64), SMALLEST, 1 - SMALLEST)
    return np.log(p) - np.log1p(-p)


def calibrate(
    labels: ArrayLike,
    probability: ArrayLike,
    patients: Sequence[str] | None = None,
    *,
    bins: int = 10,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Calibration:
    """Calibration of the probability [n] of class 1 with 95 % intervals over patients."""
    y, p = _checked(labels, probability)
    owners = len(y) if patients is None else len(set(patients))
    problem = _problem(y, p)
    # Resamples are not balanced by class: how many events there are is part of what calibration is about.
    whole = np.zeros(len(y), np.int64)
    weights = np.concatenate([np.ones((1, len(y))), *resampled(whole, patients, resamples, seed)])
    table = _figures(y, p, weights)
    if not problem and not math.isfinite(table["slope"][0]):
        problem = (
            "The predictions separate the classes completely, so no finite slope fits them: slope and intercept cannot "
            "be given."
        )
    enough = int(class_patients(y, patients, 2).min()) >= FEWEST
    values = {name: _with_interval(name, found, enough) for name, found in table.items()}
    if problem:
        values |= dict.fromkeys(("slope", "intercept"), (math.nan, math.nan, math.nan))
    error = values["calibration_error"][0]
    values["calibration_error"] = (error, math.nan, math.nan)
    chance = _error_by_chance(p, patients, resamples, seed)
    return Calibration(len(y), owners, int(y.sum()), values, reliability(y, p, patients, bins=bins), chance, problem)


def _error_by_chance(p: Array, patients: Sequence[str] | None, resamples: int, seed: int) -> tuple[float, float]:
    """Median and 95th percentile of the calibration error when every prediction is exactly right.

    Outcomes are drawn with the predicted probabilities; the bags of a patient share one draw, as labels mostly do.
    """
    if not resamples:
        return math.nan, math.nan
    owner = np.arange(len(p)) if patients is None else patient_numbers(patients)
    luck = np.random.default_rng(seed).random((resamples, int(owner.max()) + 1))[:, owner]
    member = np.eye(CALIBRATION_BINS)[_bins(p)]
    errors = np.abs(((luck < p) - p) @ member).sum(1) / len(p)
    middle, high = np.quantile(errors, [0.5, 0.95])
    return float(middle), float(high)


def _problem(y: NDArray[np.int64], p: Array) -> str:
    if y.min() == y.max():
        return f"All {len(y)} bags are of one class, so slope and intercept of the calibration cannot be estimated."
    if np.ptp(p) < SMALLEST:
        return f"All predictions are {p[0]:.3f}, so a calibration slope cannot be estimated."
    return ""


def _with_interval(name: str, found: Array, enough: bool) -> tuple[float, float, float]:
    value, draws = float(found[0]), found[1:]
    if not (enough and math.isfinite(value)) or not len(draws) or np.isnan(draws).mean() > LOST_DRAWS:
        return value, math.nan, math.nan
    low, high = interval(draws)
    return (value, low, high) if high - low > NARROW else (value, math.nan, math.nan)


def _figures(y: NDArray[np.int64], p: Array, weights: Array) -> dict[str, Array]:
    x = logits(p)
    both = y.min() < y.max()
    none = np.full(len(weights), np.nan)
    intercept, slope = logistic_line(x, y, weights) if both and np.ptp(p) >= SMALLEST else (none, none)
    return {
        "slope": slope,
        "intercept": intercept,
        "in_the_large": logistic_shift(x, y, weights) if both else none,
        "expected_over_observed": divide(weights @ p, weights @ y.astype(np.float64)),
        "brier": weights @ np.square(p - y) / weights.sum(1),
        "calibration_error": _calibration_error(y, p, weights),
    }


def logistic_line(x: Array, y: ArrayLike, weights: Array | None = None) -> tuple[Array, Array]:
    """Intercepts and slopes [draws] of y on x by maximum likelihood, all draws at once; NaN where none is finite.

    y may lie between 0 and 1 (smoothed targets).
    """
    y = np.asarray(y, dtype=np.float64)
    w = np.ones((1, len(x))) if weights is None else np.asarray(weights, dtype=np.float64)
    centre, spread = float(np.mean(x)), float(np.std(x)) or 1.0
    z = (x - centre) / spread
    a, b, da, db = (np.zeros(len(w)) for _ in range(4))
    flat = np.zeros(len(w), dtype=bool)
    total = w.sum(1)
    for _ in range(60):
        m = expit(a[:, None] + b[:, None] * z)
        residual, curve = w * (y - m), w * m * (1 - m)
        g0, g1 = residual.sum(1), residual @ z
        h00, h01, h11 = curve.sum(1), curve @ z, curve @ z**2
        determinant = h00 * h11 - h01**2
        flat = determinant <= 1e-12 * np.square(total)
        safe = np.where(flat, 1.0, determinant)
        da, db = (h11 * g0 - h01 * g1) / safe, (h00 * g1 - h01 * g0) / safe
        size = np.maximum(1.0, np.maximum(np.abs(da), np.abs(db)) / 2)  # no step is longer than 2
        a, b = a + np.where(flat, 0, da / size), b + np.where(flat, 0, db / size)
        if np.all(flat | (np.maximum(np.abs(da), np.abs(db)) < 1e-10)):
            break
    slope = b / spread
    finite = ~flat & (np.abs(b) < STEEPEST) & (np.maximum(np.abs(da), np.abs(db)) < 1e-6)
    return np.where(finite, a - slope * centre, np.nan), np.where(finite, slope, np.nan)


def logistic_shift(x: Array, y: ArrayLike, weights: Array | None = None) -> Array:
    """The intercepts [draws] of y on x with slope 1, the calibration-in-the-large; NaN where a draw has one class."""
    y = np.asarray(y, dtype=np.float64)
    w = np.ones((1, len(x))) if weights is None else np.asarray(weights, dtype=np.float64)
    total = w.sum(1)
    share = divide(w @ y, total)
    both = (share > 0) & (share < 1)
    goal = np.where(both, share, 0.5)
    a = np.zeros(len(w))
    for _ in range(60):
        m = expit(a[:, None] + x)
        step = (goal - (w * m).sum(1) / total) / np.maximum((w * m * (1 - m)).sum(1) / total, 1e-9)
        a = a + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-10:
            break
    return np.where(both, a, np.nan)


def reliability(
    labels: ArrayLike, probability: ArrayLike, patients: Sequence[str] | None = None, *, bins: int = 10
) -> list[dict[str, float]]:
    """Predicted and observed frequency in bins with about as many bags each; equal predictions share a bin."""
    y, p = _checked(labels, probability)
    owner = np.arange(len(y)) if patients is None else patient_numbers(patients)
    place = np.searchsorted(np.sort(p), p, side="left")
    member = np.minimum(place * bins // len(p), bins - 1)
    return [
        {
            "predicted": float(p[inside].mean()),
            "observed": float(y[inside].mean()),
            "n": int(inside.sum()),
            "patients": len(np.unique(owner[inside])),
        }
        for inside in (member == b for b in np.unique(member))
    ]

"""Penalised regression on a few numbers per bag, for every objective, with its penalty chosen by folds of patients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from dasmil.candidates.folds import Fold, patient_folds, patient_weights
from dasmil.candidates.objective import Objective

Array = NDArray[np.float64]
PENALTIES = (1e5, 1e4, 1e3, 1e2, 1e1, 1e0)
"""Ridges on standardised numbers, strongest first: from nearly a constant to nearly none for 100 bags."""
STILL = 1e-9
"""Numbers that vary less than this share of their size between bags differ by rounding."""


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Standardised numbers of bags in the coordinates of their singular vectors, in which a ridge is the same.

    rows [bags, r]; back [p, r]: from weights on the rows to weights on the numbers as they were, whose mean is centre.
    """

    rows: Array
    back: Array
    centre: Array

    @staticmethod
    def of(numbers: Array) -> Coordinates:
        """numbers [bags, p]; those that do not vary get no weight."""
        centre, spread = numbers.mean(0), numbers.std(0)
        varies = spread > STILL * np.maximum(1.0, np.abs(centre))
        scale = np.where(varies, 1 / np.where(varies, spread, 1.0), 0.0)
        x = (numbers - centre) * scale
        values, left = np.linalg.eigh(x @ x.T) if len(x) <= x.shape[1] else (None, None)
        if values is None or left is None:
            values, right = np.linalg.eigh(x.T @ x)
            keep = values > 1e-10 * max(values[-1], 1e-300)
            right = right[:, keep]
            return Coordinates(x @ right, scale[:, None] * right, centre)
        keep = values > 1e-10 * max(values[-1], 1e-300)
        roots = np.sqrt(values[keep])
        return Coordinates(left[:, keep] * roots, scale[:, None] * (x.T @ left[:, keep]) / roots, centre)


@dataclass(frozen=True, eq=False)
class Line:
    """A fitted regression: outputs = constant + rows @ weights @ link."""

    weights: Array
    constant: Array

    def outputs(self, rows: Array, objective: Objective) -> Array:
        return self.constant + rows @ self.weights @ objective.link


def fit_line(rows: Array, objective: Objective, weights: Array, penalty: float, start: Line | None = None) -> Line:
    """The regression on rows [bags, r] with the lowest weighted loss + penalty / 2 |weights|^2."""
    r, m = rows.shape[1], len(objective.link)
    if start is None:
        start = Line(np.zeros((r, m)), objective.guess())
    total = weights.sum()
    scale = 1 / np.sqrt(objective.curvature * (weights @ np.square(rows)) + penalty)
    shift = 1 / np.sqrt(objective.curvature * total)

    def unpack(v: Array) -> tuple[Array, Array]:
        return v[: r * m].reshape(r, m) * scale[:, None], v[r * m :] * shift

    def value(v: Array) -> tuple[float, Array]:
        w, b = unpack(v)
        outputs = b + rows @ w @ objective.link
        slope = weights[:, None] * objective.gradient(outputs)
        down = rows.T @ (slope @ objective.link.T) + penalty * w
        loss = float(weights @ objective.losses(outputs)) + 0.5 * penalty * float(np.square(w).sum())
        return loss, np.concatenate([(down * scale[:, None]).ravel(), slope.sum(0) * shift])

    begin = np.concatenate([(start.weights / scale[:, None]).ravel(), start.constant / shift])
    found = minimize(value, begin, jac=True, method="L-BFGS-B", options={"maxiter": 200, "ftol": 1e-9, "gtol": 1e-6})
    return Line(*unpack(found.x))


def fit_path(rows: Array, objective: Objective, weights: Array, penalties: Sequence[float]) -> list[Line]:
    """Regressions with these penalties, strongest first; each starts from the one before."""
    lines: list[Line] = []
    for penalty in penalties:
        lines.append(fit_line(rows, objective, weights, penalty, lines[-1] if lines else None))
    return lines


def fit_chosen(
    rows: Array, objective: Objective, patients: Sequence[str], penalties: Sequence[float] = PENALTIES
) -> Line:
    """The regression with the penalty whose loss on other folds of these patients is lowest."""
    weights = patient_weights(patients)
    losses = np.zeros(len(penalties))
    for fold in patient_folds(objective, patients, seed=1):
        held = objective.part(fold.held)
        lines = fit_path(rows[fold.rest], objective.part(fold.rest), weights[fold.rest], penalties)
        losses += [float(weights[fold.held] @ held.losses(line.outputs(rows[fold.held], held))) for line in lines]
    best = int(losses.argmin())
    return fit_path(rows, objective, weights, penalties[: best + 1])[-1]


def cross_fitted(rows: Array, objective: Objective, patients: Sequence[str], folds: Sequence[Fold]) -> Array:
    """Outputs [bags, outputs] of every bag by a regression that saw no bag of its fold, penalty included."""
    outputs = np.zeros((len(rows), objective.outputs))
    for fold in folds:
        line = fit_chosen(rows[fold.rest], objective.part(fold.rest), np.asarray(patients)[fold.rest].tolist())
        outputs[fold.held] = line.outputs(rows[fold.held], objective)
    return outputs

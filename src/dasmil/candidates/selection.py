"""Which candidate a cohort supports: the simplest whose out-of-fold loss per patient is as good as the lowest.

This is the discrete super learner of van der Laan, Polley and Hubbard (2007) with the rule of one standard error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from dasmil.candidates.folds import patient_weights
from dasmil.candidates.objective import Objective

Array = NDArray[np.float64]
STANDARD_ERRORS = 1.0
"""A simpler candidate is preferred while its loss is at most this many standard errors above the lowest."""
KEPT_GAIN = 0.5
"""A simpler candidate must also keep this share of what the best one gains over a constant guess: among weak candidates
one that is near a constant guess may lie within the standard error."""
PRIOR_PATIENTS = 4.0
"""What calibration is drawn back by: so many patients at the steepest point of the loss."""


@dataclass(frozen=True)
class Selection:
    """The candidate that is kept; weight and bias calibrate its out-of-fold outputs; losses: mean per patient."""

    name: str
    weight: float
    bias: tuple[float, ...]
    losses: dict[str, float]
    errors: dict[str, float]
    """Standard errors of the paired difference to the lowest loss."""


def patient_losses(objective: Objective, outputs: Array, patients: Sequence[str]) -> Array:
    """The mean loss of every patient [patients]; bags of a patient with one target are judged by their mean outputs."""
    return _by_patient(objective.losses(patient_means(objective, outputs, patients)), patients)


def patient_means(objective: Objective, outputs: Array, patients: Sequence[str]) -> Array:
    """For every bag the mean outputs of its patient's bags with the same target [bags, outputs]."""
    names = [f"{patient}\0{asked}" for patient, asked in zip(patients, objective.targets(), strict=True)]
    _, place, count = np.unique(names, return_inverse=True, return_counts=True)
    sums = np.zeros((len(count), outputs.shape[1]))
    np.add.at(sums, place, outputs)
    return (sums / count[:, None])[place]


def select(
    candidates: Mapping[str, Array], constant: Array, objective: Objective, patients: Sequence[str]
) -> Selection:
    """The simplest candidate whose paired loss per patient is within a standard error of the lowest.

    candidates: out-of-fold outputs [bags, outputs], the simplest first; constant: those of a constant guess. It also
    keeps half of the best one's gain over a constant guess. Where no candidate gains anything, the simplest is kept,
    and calibration makes its predictions as cautious as they should be.
    """
    usual = float(patient_losses(objective, constant, patients).mean())
    losses = {name: patient_losses(objective, outputs, patients) for name, outputs in candidates.items()}
    best = min(losses, key=lambda name: losses[name].mean())
    worse = {name: own - losses[best] for name, own in losses.items()}
    errors = {name: float(own.std(ddof=1) / np.sqrt(len(own))) for name, own in worse.items()}
    close = [name for name in losses if worse[name].mean() <= STANDARD_ERRORS * errors[name]]
    gain = usual - float(losses[best].mean())
    useful = [name for name in close if gain <= 0 or usual - losses[name].mean() >= KEPT_GAIN * gain]
    name = useful[0]
    weight, bias = calibrate(candidates[name], constant, objective, patients)
    means = {"constant": usual} | {name: float(values.mean()) for name, values in losses.items()}
    return Selection(name, weight, tuple(bias.tolist()), means, errors)


def calibrate(outputs: Array, constant: Array, objective: Objective, patients: Sequence[str]) -> tuple[float, Array]:
    """The weight >= 0 and the bias with the lowest loss of constant + bias + weight (outputs - constant).

    The weight is drawn to 1 and the bias to 0 as by a few further patients, so that small cohorts do not overshoot.
    """
    counts, rows = patient_weights(patients), outputs - constant
    spread = max(float(np.sqrt(np.mean(np.square(rows)))), 1e-9)

    def value(v: Array) -> tuple[float, Array]:
        said = constant + v[0] * rows + v[1:] @ objective.link
        slope = counts[:, None] * objective.gradient(said)
        strength = objective.curvature * PRIOR_PATIENTS * np.concatenate([[spread**2], np.ones(len(v) - 1)])
        off = v - begin
        down = np.concatenate([[(rows * slope).sum()], (slope @ objective.link.T).sum(0)]) + strength * off
        return float(counts @ objective.losses(said)) + 0.5 * float(strength @ np.square(off)), down

    begin = np.concatenate([[1.0], np.zeros(len(objective.link))])
    bounds = [(0.0, None)] + [(None, None)] * len(objective.link)
    found = minimize(value, begin, jac=True, bounds=bounds, method="L-BFGS-B").x
    return float(found[0]), found[1:] @ objective.link


def _by_patient(values: Array, patients: Sequence[str]) -> Array:
    _, place, count = np.unique(np.asarray(patients), return_inverse=True, return_counts=True)
    return np.bincount(place, values) / count

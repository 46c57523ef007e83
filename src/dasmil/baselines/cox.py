"""Cox regression with a ridge, by Newton's method; ties after Efron (JASA 72, 557-565, 1977)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dasmil.errors import InputError
from dasmil.stats import FollowUp

Array = NDArray[np.float64]
STEPS, HALVINGS, TOLERANCE = 100, 40, 1e-10
ENDLESS = 20.0
"""A log-risk per standard deviation on its way to infinity: the likelihood rises without end."""


@dataclass(frozen=True, eq=False)
class CoxFit:
    """Coefficients of a Cox regression, their penalised log partial likelihood, and the means it is centred on."""

    coefficients: Array
    log_likelihood: float
    centre: Array

    def risk(self, x: Array) -> Array:
        """The log of the risk relative to a patient with mean values [n]."""
        return (np.asarray(x, dtype=np.float64) - self.centre) @ self.coefficients


def fit_cox(x: Array, follow: FollowUp, *, ridge: float = 1.0) -> CoxFit:
    """The coefficients b of x [n, p] that maximise the log partial likelihood - ridge / 2 |b|^2.

    Give x in comparable units (standardised): the ridge does not know them. Without a ridge, values that tell the
    order of events perfectly have no finite answer, which is an error.
    """
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2 or len(x) != len(follow):
        raise InputError(f"{x.shape} values for {len(follow)} bags: expected a row each")
    if not np.isfinite(x).all():
        raise InputError("values are NaN or infinite: fill in what is missing first")
    if not follow.events.any():
        raise InputError(f"none of {len(x)} bags has the event: a Cox regression needs some")
    centre = x.mean(0)
    sets = _RiskSets(x - centre, follow)
    b = np.zeros(x.shape[1])
    value, slope, curve = sets.at(b, ridge)
    for _ in range(STEPS):
        step = np.linalg.lstsq(curve, slope, rcond=None)[0]
        for halving in range(HALVINGS):  # far from the answer a full step may overshoot
            tried = sets.at(b + step / 2**halving, ridge)
            if tried[0] >= value - 1e-12:
                break
        else:
            break
        b, gain = b + step / 2**halving, tried[0] - value
        value, slope, curve = tried
        if np.abs(b * x.std(0)).max(initial=0) > ENDLESS:
            break
        if gain <= TOLERANCE * max(1.0, abs(value)):
            return CoxFit(b, value, centre)
    raise InputError(
        f"the Cox regression of {len(x)} bags on {x.shape[1]} values has no finite answer: they tell the order of "
        "events perfectly, or repeat each other; give a ridge above 0, or fewer values"
    )


class _RiskSets:
    """Bags from the latest time to the earliest, so that sums over those still watched are running sums."""

    def __init__(self, x: Array, follow: FollowUp) -> None:
        order = np.argsort(-follow.times, kind="stable")
        self.x, times, self.events = x[order], follow.times[order], follow.events[order]
        ends = np.flatnonzero(np.concatenate([np.diff(times) != 0, [True]]))  # the last bag of each distinct time
        starts = np.concatenate([[0], ends[:-1] + 1])
        self.groups = [
            (end, start + np.flatnonzero(self.events[start : end + 1]))
            for start, end in zip(starts, ends, strict=True)
            if self.events[start : end + 1].any()
        ]

    def at(self, b: Array, ridge: float) -> tuple[float, Array, Array]:
        """Penalised log partial likelihood, its gradient, and minus its matrix of second derivatives."""
        eta = np.clip(self.x @ b, -500, 500)
        w = np.exp(eta)
        s0 = np.cumsum(w)
        s1 = np.cumsum(w[:, None] * self.x, axis=0)
        s2 = np.cumsum(w[:, None, None] * self.x[:, :, None] * self.x[:, None, :], axis=0)
        value, slope, curve = -ridge / 2 * float(b @ b), -ridge * b, ridge * np.eye(len(b))
        for end, dead in self.groups:
            own, xd = w[dead], self.x[dead]
            d0, d1 = own.sum(), own @ xd
            d2 = np.einsum("i,ij,ik->jk", own, xd, xd)
            value += float(eta[dead].sum())
            slope = slope + xd.sum(0)
            for share in np.arange(len(dead)) / len(dead):  # Efron: those who die at one time leave one after another
                all0 = s0[end] - share * d0
                mean = (s1[end] - share * d1) / all0
                value -= float(np.log(all0))
                slope = slope - mean
                curve = curve + (s2[end] - share * d2) / all0 - np.outer(mean, mean)
        return value, slope, curve

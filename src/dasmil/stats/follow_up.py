"""Follow-up of patients, Kaplan-Meier curves, the censoring that weights are made of, and the log-rank test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2

from dasmil.errors import InputError
from dasmil.stats.curves import Z

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FollowUp:
    """Times [n] in one unit, none negative, and whether the event was seen at that time [n] (False: censored then)."""

    times: Array
    events: NDArray[np.bool_]

    def __post_init__(self) -> None:
        times, events = np.asarray(self.times, dtype=np.float64), np.asarray(self.events)
        if times.ndim != 1 or len(times) == 0 or events.shape != times.shape:
            raise InputError(
                f"{times.shape} times and {events.shape} events: expected one of each per bag, at least one"
            )
        if not np.isfinite(times).all() or (times < 0).any():
            wrong = int((~np.isfinite(times) | (times < 0)).sum())
            raise InputError(f"{wrong} of {len(times)} times are negative, infinite or missing: expected 0 or more")
        if not np.isin(events, (0, 1)).all():
            raise InputError("events other than 0 (censored) and 1 (seen) were found: expected one of the two per bag")
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "events", events.astype(bool))

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> FollowUp:
        return FollowUp(self.times[rows], self.events[rows])

    @property
    def strata(self) -> NDArray[np.int64]:
        """What resamples keep the numbers of: 1 where the event was seen, else 0."""
        return self.events.astype(np.int64)


@dataclass(frozen=True, eq=False)
class KaplanMeier:
    """Share without the event after each distinct time, its 95 % interval, and how many were watched just before.

    The interval is Greenwood's on the scale log(-log S), as survival programs print it. ``events``: seen at that time.
    """

    times: Array
    survival: Array
    low: Array
    high: Array
    at_risk: Array
    events: Array

    def at(self, times: ArrayLike) -> Array:
        """The share without the event at any time: 1 before the first, the last value after the last."""
        return step(self.times, self.survival[None], np.atleast_1d(np.asarray(times, dtype=np.float64)))[0]

    def numbers_at_risk(self, times: ArrayLike) -> NDArray[np.int64]:
        """How many are still watched at each time (their own time is that or later)."""
        index = np.searchsorted(self.times, np.atleast_1d(np.asarray(times, dtype=np.float64)), side="left")
        return np.concatenate([self.at_risk, [0]])[index].astype(np.int64)

    @property
    def median(self) -> float:
        """The first time at which half or fewer are left; NaN where the curve stays above."""
        below = np.flatnonzero(self.survival <= 0.5 + 1e-12)
        return float(self.times[below[0]]) if len(below) else float("nan")


def kaplan_meier(follow: FollowUp) -> KaplanMeier:
    """The Kaplan-Meier estimate of one group."""
    times, at_risk, deaths, _ = risk_table(follow, np.ones((1, len(follow))))
    n, d = at_risk[0], deaths[0]
    survival = np.cumprod(1 - d / n)
    inner = (survival > 0) & (survival < 1)
    variance = np.cumsum(np.divide(d, n * (n - d), out=np.zeros_like(d), where=n > d))
    low, high = np.where(survival < 1, 0.0, 1.0), np.ones_like(survival)
    logs = np.log(survival[inner])
    spread = Z * np.sqrt(variance[inner]) / logs
    low[inner], high[inner] = survival[inner] ** np.exp(-spread), survival[inner] ** np.exp(spread)
    gone = np.flatnonzero(survival == 0)  # Greenwood's variance has no value there: the upper end stays where it was
    if len(gone):
        high[gone] = high[gone[0] - 1] if gone[0] else 1.0
    return KaplanMeier(times, survival, low, high, n, d)


def risk_table(follow: FollowUp, weights: Array) -> tuple[Array, Array, Array, Array]:
    """Distinct times [k] and, per draw of weights [draws, n], those at risk, with the event, censored [draws, k]."""
    order = np.argsort(follow.times, kind="stable")
    times = follow.times[order]
    starts = np.flatnonzero(np.concatenate([[True], np.diff(times) > 0]))
    seen, drawn = follow.events[order], weights[:, order]
    deaths = np.add.reduceat(drawn * seen, starts, axis=1)
    censored = np.add.reduceat(drawn * ~seen, starts, axis=1)
    at_risk = np.cumsum((deaths + censored)[:, ::-1], axis=1)[:, ::-1]
    return times[starts], at_risk, deaths, censored


def survivors(follow: FollowUp, weights: Array, times: Array) -> Array:
    """The Kaplan-Meier estimate under each row of the weights at each time [draws, times]."""
    distinct, at_risk, deaths, _ = risk_table(follow, weights)
    return step(distinct, _left(deaths, at_risk), times)


def uncensored(follow: FollowUp, weights: Array, times: Array, *, before: bool) -> Array:
    """The estimated share not yet censored at each time [draws, times], of which inverse weights are made.

    before: just before each time, as is due to an event there; else up to and with it. Where an event and a
    censoring share a time, the event comes first.
    """
    distinct, at_risk, deaths, censored = risk_table(follow, weights)
    left = _left(censored, at_risk - deaths)
    return step(distinct, left, times, before=before)


def step(knots: Array, values: Array, times: Array, *, before: bool = False) -> Array:
    """A step function with values [draws, k] from each knot on, 1 before the first, read at times [draws, times]."""
    index = np.searchsorted(knots, times, side="left" if before else "right")
    return np.concatenate([np.ones((len(values), 1)), values], axis=1)[:, index]


def log_rank(follow: FollowUp, groups: Sequence[object] | NDArray[np.int64]) -> tuple[float, float]:
    """Statistic and p of the log-rank test that all groups share one survival curve; NaN where it cannot be made.

    Two or more groups, ties by the hypergeometric variance (Mantel, Cancer Chemotherapy Reports 50, 1966).
    """
    _, member = np.unique(np.asarray(groups), return_inverse=True)
    if member.shape != follow.times.shape:
        raise InputError(f"{len(member)} groups for {len(follow)} bags: expected the group of every bag")
    one_hot = np.eye(int(member.max()) + 1)[member].T  # each group as a row of weights
    _, at_risk, deaths, _ = risk_table(follow, one_hot)
    n, d = at_risk.sum(0), deaths.sum(0)
    share = at_risk / n
    gap = (deaths - d * share).sum(1)[:-1]
    factor = d * np.divide(n - d, n - 1, out=np.zeros_like(n), where=n > 1)
    variance = ((np.einsum("gk,gh->ghk", share, np.eye(len(share))) - share[:, None] * share) * factor).sum(2)
    if len(gap) == 0 or np.linalg.matrix_rank(variance[:-1, :-1]) < len(gap):
        return float("nan"), float("nan")
    statistic = float(gap @ np.linalg.solve(variance[:-1, :-1], gap))
    return statistic, float(chi2.sf(statistic, len(gap)))


def risk_cuts(risk: ArrayLike, groups: int = 2) -> list[float]:
    """Where predicted risks of validation bags are cut into groups of equal size: the median for two.

    Cut on bags other than those that are then compared, else the groups have seen the answer of their own curves.
    """
    found = np.quantile(np.asarray(risk, dtype=np.float64), np.arange(1, groups) / groups)
    return [float(cut) for cut in np.atleast_1d(found)]


def in_groups(risk: ArrayLike, cuts: Sequence[float]) -> NDArray[np.int64]:
    """The group of every risk: 0 below or at the first cut, then up."""
    return np.searchsorted(np.asarray(cuts), np.asarray(risk, dtype=np.float64), side="left").astype(np.int64)


def _left(part: Array, whole: Array) -> Array:
    """What is left [draws, k] after each time has taken its part of the whole."""
    share = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    return np.cumprod(1 - share, axis=1, dtype=np.float64)

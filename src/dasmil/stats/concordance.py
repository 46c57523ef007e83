"""How well a risk orders patients in time: C-index of Harrell and of Uno, AUROC at chosen times.

Every function takes weights of the bags [draws, n] (bootstrap counts), so that resamples are one call; None: one draw
in which every bag counts once. Censoring is undone by inverse weights, estimated anew in every draw, or from
``reference`` (say, the training bags) where that is given.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dasmil.errors import InputError
from dasmil.stats.follow_up import FollowUp, uncensored
from dasmil.stats.ranking import auroc, divide

Array = NDArray[np.float64]


def harrell(follow: FollowUp, risk: Array, weights: Array | None = None) -> Array:
    """Harrell's C-index [draws]: the share of comparable pairs in which the earlier event has the higher risk.

    A pair is comparable when the earlier time has an event; at one time, an event is earlier than a censoring, and two
    events are not compared. Equal risks count half. NaN where no pair is comparable (no event, or none before the end).
    """
    weights = as_weights(follow, weights)
    return divide(*_pairs(follow, _checked(follow, risk), weights, weights * follow.events))


def uno(
    follow: FollowUp,
    risk: Array,
    weights: Array | None = None,
    *,
    until: float | None = None,
    reference: FollowUp | None = None,
) -> Array:
    """Uno's C-index [draws]: Harrell's with every event weighted by 1 / G(t-)^2, so that censoring does not bias it.

    G: the share not censored (Uno et al., Statistics in Medicine 30, 2011). until: only events before this time count.
    """
    weights = as_weights(follow, weights)
    counted = follow.events if until is None else follow.events & (follow.times < until)
    inverse = _inverse(follow, weights, reference)
    return divide(*_pairs(follow, _checked(follow, risk), weights, weights * counted * inverse**2))


def auroc_at(
    follow: FollowUp,
    risk: Array,
    time: float,
    weights: Array | None = None,
    *,
    reference: FollowUp | None = None,
) -> Array:
    """AUROC at a time [draws]: events up to it against those still without (cumulative cases, dynamic controls).

    Who was censored before counts through the weights 1 / G(t-) of the events; equal risks count half; NaN where
    there is no event up to the time or nobody is left after it. risk: for example 1 - survival at that time.
    """
    weights = as_weights(follow, weights)
    cases, controls = follow.events & (follow.times <= time), follow.times > time
    weighted = weights * np.where(cases, _inverse(follow, weights, reference), controls)
    return auroc(_checked(follow, risk), cases, weighted)


def as_weights(follow: FollowUp, weights: Array | None) -> Array:
    """[draws, n]; without weights one draw in which every bag counts once."""
    return np.ones((1, len(follow))) if weights is None else np.asarray(weights, dtype=np.float64)


def _checked(follow: FollowUp, risk: Array) -> Array:
    risk = np.asarray(risk, dtype=np.float64)
    if risk.shape != follow.times.shape:
        raise InputError(f"{risk.shape} risks for {len(follow)} bags: expected one of each bag")
    if not np.isfinite(risk).all():
        raise InputError(f"{int((~np.isfinite(risk)).sum())} predictions are NaN or infinite: the model diverged")
    return risk


def _inverse(follow: FollowUp, weights: Array, reference: FollowUp | None) -> Array:
    """1 / G(t-) of every bag at its own time [draws or 1, n]; 0 where G is 0 (no event of its own set is there)."""
    known, counts = (follow, weights) if reference is None else (reference, as_weights(reference, None))
    share = uncensored(known, counts, follow.times, before=True)
    return np.divide(1, share, out=np.zeros_like(share), where=share > 0)


def _pairs(follow: FollowUp, risk: Array, weights: Array, cases: Array) -> tuple[Array, Array]:
    """Weight of pairs in the right order (ties half) and of all comparable pairs [draws], in n log n steps.

    From the latest time to the earliest, bags enter a tree of sums over ranks of risk (Fenwick, Software: Practice and
    Experience 24, 1994), one for all draws; each event asks it for the weight below and up to its own rank.
    """
    rank = np.unique(risk, return_inverse=True)[1].tolist()
    size = max(rank) + 1
    tree = np.zeros((size + 1, len(weights)))
    right, total, inside = np.zeros(len(weights)), np.zeros(len(weights)), np.zeros(len(weights))
    order = np.lexsort((follow.events, -follow.times))  # of one time the censored first: they are later than its events
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and _same_step(follow, order[start], order[end]):
            end += 1
        group = order[start:end]
        if follow.events[group[0]]:
            for i in group:
                below, upto = _sum(tree, rank[i]), _sum(tree, rank[i] + 1)
                right += cases[:, i] * (below + upto) / 2
                total += cases[:, i] * inside
        for i in group:
            tree[_above(rank[i] + 1, size)] += weights[:, i]
            inside += weights[:, i]
        start = end
    return right, total


def _same_step(follow: FollowUp, a: int, b: int) -> bool:
    return follow.times[a] == follow.times[b] and follow.events[a] == follow.events[b]


def _sum(tree: Array, count: int) -> Array:
    """The sum of the first ``count`` ranks."""
    path = []
    while count > 0:
        path.append(count)
        count -= count & -count
    return tree[path].sum(0)


def _above(place: int, size: int) -> list[int]:
    """The nodes whose sums hold a rank."""
    path = []
    while place <= size:
        path.append(place)
        place += place & -place
    return path

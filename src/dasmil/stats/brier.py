"""How right predicted survival is: Brier score at times and over time, against Kaplan-Meier, and calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.errors import InputError
from dasmil.stats.concordance import as_weights
from dasmil.stats.curves import wilson
from dasmil.stats.follow_up import FollowUp, kaplan_meier, survivors, uncensored
from dasmil.stats.ranking import divide

Array = NDArray[np.float64]
GRID_TIMES = 50
STILL_WATCHED = 0.1
"""The integral over time ends where fewer than this share of the patients are watched."""
CALIBRATION_GROUPS = 5


def default_horizons(follow: FollowUp) -> list[float]:
    """Times at which figures are given where none were chosen: quarters of the event times; none without events."""
    seen = follow.times[follow.events]
    return [float(t) for t in np.unique(np.quantile(seen, [0.25, 0.5, 0.75]))] if len(seen) else []


def default_grid(follow: FollowUp) -> Array:
    """50 times from the first event to where a tenth of the patients are still watched; none without events."""
    seen = follow.times[follow.events]
    if not len(seen):
        return np.zeros(0)
    last = float(np.quantile(follow.times, 1 - STILL_WATCHED))
    return np.unique(np.linspace(float(seen.min()), max(last, float(seen.min())), GRID_TIMES))


def brier_at(
    follow: FollowUp,
    survival: Array,
    times: Array,
    weights: Array | None = None,
    *,
    reference: FollowUp | None = None,
) -> Array:
    """Brier score at times [draws, times] of predicted survival [n, times], censoring undone by weights.

    Graf et al., Statistics in Medicine 18, 1999: (0 - S)^2 / G(t_i-) of events up to the time, (1 - S)^2 / G(t) of
    those still without; NaN after the last censoring, where G is 0. 0.25 is what S = 0.5 reaches.
    reference: where G is estimated, else in every draw.
    """
    times = np.asarray(times, dtype=np.float64)
    survival = _checked(follow, survival, times)
    weights = as_weights(follow, weights)
    known, counts = (follow, weights) if reference is None else (reference, as_weights(reference, None))
    own = uncensored(known, counts, follow.times, before=True)
    inverse = np.divide(1, own, out=np.zeros_like(own), where=own > 0)
    left = np.broadcast_to(uncensored(known, counts, times, before=False), (len(weights), len(times)))
    over = (follow.times[:, None] <= times) & follow.events[:, None]
    early = (weights * inverse) @ (over * survival**2)
    late = weights @ ((follow.times[:, None] > times) * (1 - survival) ** 2)
    return (early + divide(late, left)) / weights.sum(1, keepdims=True)


def integrated(scores: Array, times: Array) -> Array:
    """Mean over time [draws] of scores [draws, times] by trapezoids; times at which a score is NaN do not count."""
    if len(times) < 2:
        return scores.mean(1) if len(times) else np.full(len(scores), np.nan)
    width = np.zeros(len(times))
    width[:-1] += np.diff(times) / 2
    width[1:] += np.diff(times) / 2
    known = np.isfinite(scores)
    return divide(np.where(known, scores, 0) @ width, known @ width)


def kaplan_meier_brier(
    follow: FollowUp, times: Array, weights: Array | None = None, *, reference: FollowUp | None = None
) -> Array:
    """Brier score [draws, times] of telling every patient the Kaplan-Meier curve.

    The curve is that of ``reference`` (the training bags), else of each draw itself, which knows the answer a little.
    """
    weights, times = as_weights(follow, weights), np.asarray(times, dtype=np.float64)
    known, counts = (follow, weights) if reference is None else (reference, as_weights(reference, None))
    share = np.broadcast_to(survivors(known, counts, times), (len(weights), len(times)))
    # The score is a square in S, so two scores of constant predictions give that of any: all early, and all late.
    zero = np.zeros((len(follow), len(times)))
    late = brier_at(follow, zero, times, weights, reference=reference)
    early = brier_at(follow, zero + 1, times, weights, reference=reference)
    return early * share**2 + late * (1 - share) ** 2


def calibration_at(
    follow: FollowUp, survival: Array, time: float, *, groups: int = CALIBRATION_GROUPS
) -> list[dict[str, Any]]:
    """Predicted and observed risk of the event up to a time in groups of equal size, from low to high risk.

    survival: predicted share without the event at that time [n]. Observed is 1 - Kaplan-Meier of the group; its 95 %
    interval is Wilson's with the number of patients that has Greenwood's variance. Groups whose follow-up ends
    before the time have no observed risk (NaN). Equal predictions stay in one group.
    """
    survival = _checked(follow, np.asarray(survival, dtype=np.float64)[:, None], np.array([time]))[:, 0]
    risk = 1 - survival
    place = np.searchsorted(np.sort(risk), risk, side="left")
    member = np.minimum(place * groups // len(follow), groups - 1)
    rows = []
    for g in np.unique(member):
        inside = member == g
        observed, effective = _risk_of(follow[inside], time)
        low, high = wilson(observed, effective) if np.isfinite(observed) else (float("nan"), float("nan"))
        rows.append(
            {
                "predicted": float(risk[inside].mean()),
                "observed": observed,
                "interval": [low, high],
                "n": int(inside.sum()),
                "events": int((follow.events & (follow.times <= time) & inside).sum()),
            }
        )
    return rows


def _risk_of(follow: FollowUp, time: float) -> tuple[float, float]:
    """1 - Kaplan-Meier at a time and the number of fully watched patients with its variance; NaN past the follow-up."""
    curve = kaplan_meier(follow)
    if time > curve.times[-1] and curve.survival[-1] > 0:
        return float("nan"), 0.0
    survival = float(curve.at(time)[0])
    n, d = (values[curve.times <= time] for values in (curve.at_risk, curve.events))
    variance = survival**2 * float(np.divide(d, n * (n - d), out=np.zeros_like(d), where=n > d).sum())
    if variance > 0:
        return 1 - survival, survival * (1 - survival) / variance
    return 1 - survival, float((follow.times >= time).sum() or len(follow))


def _checked(follow: FollowUp, survival: Array, times: Array) -> Array:
    survival = np.asarray(survival, dtype=np.float64)
    if survival.shape != (len(follow), len(times)):
        raise InputError(
            f"{survival.shape} predicted survival: expected a row per bag and a column per time, "
            f"({len(follow)}, {len(times)})"
        )
    if not np.isfinite(survival).all() or survival.min() < -1e-9 or survival.max() > 1 + 1e-9:
        raise InputError("predicted survival outside 0 to 1, or NaN, was found: expected shares without the event")
    return survival

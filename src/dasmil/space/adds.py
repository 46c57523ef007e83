"""How much positions add to composition: out-of-fold predictions, their paired difference, and permutations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dasmil.space.outcome import Outcome
from dasmil.space.patients import Patients, permuted_rows, scores
from dasmil.space.sections import Array
from dasmil.stats import resampled

FOLDS, REPEATS = 5, 3
PENALTIES = np.geomspace(0.03, 30, 7)
"""Ridge penalties, as multiples of the number of training patients."""
WEIGHTS = (0.25, 1.0, 4.0)
"""How strongly contacts enter beside composition."""
RESAMPLES = 2000


@dataclass(frozen=True, eq=False)
class Adds:
    """Out-of-fold scores of composition alone and with positions, their difference with its 95 % interval.

    p: how often dealing out the contacts among patients (given composition) adds as much; p_labelling: how often
    dealing out the types within sections does; None where it was not drawn. null: the differences of the first kind.
    detectable: the smallest difference that would have been found with 80 % power, about.
    """

    metric: str
    composition: float
    composition_interval: tuple[float, float]
    both: float
    both_interval: tuple[float, float]
    difference: float
    interval: tuple[float, float]
    p: float
    p_labelling: float | None
    draws: int
    labelling_draws: int
    detectable: float
    null: Array


def deal_folds(strata: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """The fold of every patient [n], balanced within strata."""
    rng, found, start = np.random.default_rng(seed), np.empty(len(strata), dtype=np.int64), 0
    for stratum in np.unique(strata):
        members = rng.permutation(np.flatnonzero(strata == stratum))
        found[members] = (start + np.arange(len(members))) % folds
        start += len(members)
    return found


def predict_out_of_fold(composition: Array, contacts: Array, outcome: Outcome, fold: NDArray[np.int64]) -> Array:
    """Ridge predictions [draws, n, targets] of each patient from the others; contacts [draws, n, components].

    Least squares on ``outcome.targets``; in every fold the penalty, and the weight of contacts beside composition, are
    those with the smallest leave-one-out error among the training patients (in closed form).
    """
    found = np.empty((len(contacts), len(outcome), outcome.targets().shape[1]))
    weights = WEIGHTS if contacts.shape[2] else (1.0,)
    draws = np.arange(len(contacts))
    for number in np.unique(fold):
        train, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        y = outcome.targets(train)
        mean = y.mean(0)
        error = np.full(len(contacts), np.inf)
        for weight in weights:
            x = _joined(composition, weight * contacts)
            centre = x[:, train].mean(1, keepdims=True)
            inside, outside = x[:, train] - centre, x[:, test] - centre
            values, axes = np.linalg.eigh(inside.transpose(0, 2, 1) @ inside)
            turned, seen = inside @ axes, outside @ axes
            slope = turned.transpose(0, 2, 1) @ (y - mean)
            inverse = 1 / (values[:, :, None] + PENALTIES * len(train))  # [draws, components, penalties]
            leverage = 1 / len(train) + turned**2 @ inverse
            fits = inverse[:, :, :, None] * slope[:, :, None]
            wide = fits.reshape(*fits.shape[:2], -1)
            fitted = (turned @ wide).reshape(*leverage.shape, -1)
            left_out = ((y - mean)[:, None] - fitted) / (1 - leverage)[..., None]
            own = (left_out**2).sum((1, 3))
            best = own.argmin(1)
            own, fits = own[draws, best], fits[draws, :, best]
            better = own < error
            error = np.where(better, own, error)
            found[np.ix_(better, test)] = mean + seen[better] @ fits[better]
    return found


def _joined(composition: Array, contacts: Array) -> Array:
    fixed = np.broadcast_to(composition, (len(contacts), *composition.shape))
    return np.concatenate([fixed, contacts], axis=2)


def how_much(
    patients: Patients,
    outcome: Outcome,
    *,
    draws: int = 199,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Adds:
    """The out-of-fold gain of contacts over composition with its permutations; every draw fits everything again.

    The headline's null deals out, among the patients, what composition leaves of the contacts; so whatever contacts
    are like in this cohort (clustered, uneven) they are like in every draw. The other null deals out types in sections
    (the rows of ``patients.contacts`` after the first).
    """
    composition = patients.composition / np.sqrt(patients.composition.shape[1])
    observed, rng = scores(patients.residuals()), np.random.default_rng(seed)
    rows = permuted_rows(len(outcome), draws, rng)
    labelled = len(patients.contacts) - 1
    folds = [deal_folds(outcome.strata, FOLDS, seed + k) for k in range(REPEATS)]
    base = [predict_out_of_fold(composition, np.zeros((1, len(outcome), 0)), outcome, fold)[0] for fold in folds]
    total, done = 1 + draws + labelled, 0

    def gains(contacts: Array) -> tuple[Array, Array]:
        """Differences [draws], and the predictions of the first draw in every repeat."""
        nonlocal done
        said = [predict_out_of_fold(composition, contacts, outcome, fold) for fold in folds]
        found = [
            [outcome.score(one)[0] - outcome.score(alone)[0] for one in every]
            for every, alone in zip(said, base, strict=True)
        ]
        done += len(contacts)
        progress(done, total)
        return np.mean(found, axis=0), np.array([every[0] for every in said])

    (difference,), with_contacts = gains(observed[None])
    null = np.concatenate([np.zeros(0), *(gains(observed[rows[k : k + 20]])[0] for k in range(0, draws, 20))])
    by_labels = np.concatenate([np.zeros(0), *(
        gains(_padded([scores(patients.residuals(row)) for row in range(k, min(k + 20, labelled + 1))]))[0]
        for k in range(1, labelled + 1, 20)
    )])  # fmt: skip
    weights = np.concatenate(list(resampled(outcome.strata, None, RESAMPLES, seed)))
    alone = np.mean([outcome.score(one, weights) for one in base], axis=0)
    both = np.mean([outcome.score(one, weights) for one in with_contacts], axis=0)
    points = [float(np.mean([outcome.score(one)[0] for one in every])) for every in (base, with_contacts)]
    gap = both - alone
    return Adds(
        outcome.metric, points[0], _middle(alone), points[1], _middle(both), float(difference), _middle(gap),
        _p(float(difference), null), _p(float(difference), by_labels) if labelled else None, draws, labelled,
        float(np.quantile(null, 0.95) + 0.84 * np.nanstd(gap)) if draws else float("nan"), null,
    )  # fmt: skip


def _padded(found: list[Array]) -> Array:
    """Draws may have fewer components than others: the missing ones are zero."""
    width = max(one.shape[1] for one in found)
    return np.array([np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in found])


def _p(value: float, null: Array) -> float:
    return float((1 + (null >= value - 1e-12).sum()) / (1 + len(null)))


def _middle(draws: Array) -> tuple[float, float]:
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return float(low), float(high)

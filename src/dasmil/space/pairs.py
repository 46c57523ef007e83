"""Which pairs of types, at which length, go with the outcome: tests adjusted for composition and for all pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dasmil.space.outcome import Outcome
from dasmil.space.patients import Patients, adjust_for, centred, permuted_rows, resampled_rows
from dasmil.space.sections import Array

DRAWS = 1999
RESAMPLES = 500
CHUNK = 200


@dataclass(frozen=True)
class PairFinding:
    """One pair of types with one target of the outcome, at the length where they go together most clearly.

    z: standardised association (positive: more contacts, more of the target); p: of this pair with all its lengths;
    p_adjusted: with all pairs, lengths and targets (family-wise). length with its interval [low, high] from resampled
    patients. effect: the change of the log ratio of contacts that goes with a change of the target by one.
    """

    pair: tuple[int, int]
    target: int
    length: float
    low: float
    high: float
    z: float
    effect: float
    effect_low: float
    effect_high: float
    p: float
    p_adjusted: float


def associations(residuals: Array, outcome: Array, basis: Array) -> Array:
    """Robust z [targets, columns] of residuals [patients, columns] with outcome residuals [patients, targets].

    The variance is estimated from the products of each patient, so that patients may be measured unequally well.
    """
    y = outcome - basis @ (basis.T @ outcome)
    spread = np.sqrt((y**2).T @ residuals**2)
    return np.divide(y.T @ residuals, spread, out=np.zeros_like(spread), where=spread > 1e-12)


def null_associations(residuals: Array, outcome: Array, basis: Array, rows: NDArray[np.int64]) -> Array:
    """The same [draws, targets, columns] with the outcome's residuals dealt out anew among the patients (rows)."""
    y = outcome - basis @ (basis.T @ outcome)
    drawn = y[rows].transpose(1, 0, 2).reshape(len(y), -1)
    z = associations(residuals, drawn, basis)
    return z.reshape(len(rows), outcome.shape[1], -1)


def step_down(observed: Array, null: Array) -> Array:
    """p-values [k] adjusted for all of them (Westfall and Young); statistics [k] and their null draws [draws, k]."""
    order = np.argsort(-observed)
    most = np.maximum.accumulate(null[:, order[::-1]], axis=1)[:, ::-1]
    p = (1 + (most >= observed[order] - 1e-12).sum(0)) / (1 + len(null))
    found = np.empty(len(observed))
    found[order] = np.maximum.accumulate(p)
    return found


def find_pairs(
    patients: Patients,
    outcome: Outcome,
    lengths: Array,
    *,
    draws: int = DRAWS,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[PairFinding]:
    """Every pair with every target, the clearest first; each at its best length.

    Under the null the outcome's residuals, given composition, may be dealt out among the patients: that some types
    cluster, alike in all groups, is no association.
    """
    columns, rng = patients.columns(), np.random.default_rng(seed)
    if not columns:
        return []
    x, y, basis = patients.residuals(), outcome.targets(), patients.adjusted.basis
    targets = 1 if y.shape[1] == 1 else y.shape[1]
    names = list(dict.fromkeys(pair for _, pair in columns))
    owner = np.array([names.index(pair) for _, pair in columns])
    z = associations(x, y, basis)
    observed = _largest(np.abs(z)[None], owner, len(names))[0].ravel()
    rows = permuted_rows(len(y), draws, rng)
    chunks = [np.abs(null_associations(x, y, basis, rows[k : k + CHUNK])) for k in range(0, draws, CHUNK)]
    null = np.concatenate([_largest(chunk, owner, len(names)).reshape(-1, len(observed)) for chunk in chunks])
    p = (1 + (null >= observed - 1e-12).sum(0)) / (1 + draws)
    adjusted = step_down(observed, null)
    drawn = resampled_rows(outcome.strata, resamples, rng)
    best, effects = _resampled(patients, outcome, owner, len(names), drawn)
    places = np.log(lengths[[length for length, _ in columns]])
    found = []
    for target in range(targets):
        for k, pair in enumerate(names):
            own = np.flatnonzero(owner == k)
            column = own[np.abs(z[target, own]).argmax()]
            low, high = np.exp(np.percentile(places[best[:, target, k]], [2.5, 97.5]))
            number = target * len(names) + k
            effect_low, effect_high = np.percentile(effects[:, target, column], [2.5, 97.5])
            found.append(PairFinding(
                pair, target, float(np.exp(places[column])), float(low), float(high), float(z[target, column]),
                _effect(x, y, basis)[target, column], float(effect_low), float(effect_high), float(p[number]),
                float(adjusted[number]),
            ))  # fmt: skip
    return sorted(found, key=lambda one: (one.p_adjusted, one.p, -abs(one.z)))


def _largest(values: Array, owner: NDArray[np.int64], count: int) -> Array:
    """Over the lengths of each pair: [draws, targets, columns] becomes [draws, targets, pairs]."""
    order = np.argsort(owner, kind="stable")
    starts = np.searchsorted(owner[order], np.arange(count))
    return np.maximum.reduceat(values[..., order], starts, axis=-1)


def _effect(x: Array, y: Array, basis: Array) -> Array:
    """Slopes [targets, columns] of x on each target alone, both adjusted."""
    y = y - basis @ (basis.T @ y)
    return np.divide(
        y.T @ x,
        (y**2).sum(0)[:, None],
        out=np.zeros((y.shape[1], x.shape[1])),
        where=np.any(y**2, axis=0, keepdims=True).T,
    )


def _resampled(
    patients: Patients, outcome: Outcome, owner: NDArray[np.int64], count: int, drawn: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Array]:
    """In every resample of the patients, all adjusted anew: the best column of each pair, and the slopes."""
    ratios, composition = patients.ratios(0), patients.composition
    best = np.empty((len(drawn), outcome.targets().shape[1], count), dtype=np.int64)
    slopes = np.empty((len(drawn), best.shape[1], len(owner)))
    for number, rows in enumerate(drawn):
        adjusted = adjust_for(composition[rows])
        x, y = adjusted.residuals(centred(ratios[rows])), outcome.take(rows).targets()
        z = np.abs(associations(x, y, adjusted.basis))
        for k in range(count):
            own = np.flatnonzero(owner == k)
            best[number, :, k] = own[z[:, own].argmax(1)]
        slopes[number] = _effect(x, y, adjusted.basis)
    return best, slopes

"""Classical statistics of point patterns, as a check beside the study: cross-K and L, G, Moran's I, enrichment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.spatial import KDTree

from dasmil.space.contacts import Shells
from dasmil.space.outcome import Outcome
from dasmil.space.sections import Array, Section, type_pairs

FEWEST = 5
"""Instances of a type without which a section has no K and no G of it."""


def cross_l(section: Section, shells: Shells, types: int) -> Array:
    """Besag's L of each pair of types at each length [lengths, pairs].

    Ripley's K of each pair of types with the translation edge correction in the section's bounding box, as a length:
    sqrt(K / pi) in the plane. It is the length itself where types lie at random; NaN where a type is rare.
    """
    sides = np.maximum(np.ptp(section.coords, axis=0), 1e-9)
    gap = np.abs(section.coords[shells.first] - section.coords[shells.second])
    weight = 1 / np.prod(np.maximum(1 - gap / sides, 1e-3), axis=1)
    low, high = (np.sort(section.kinds[np.stack([shells.first, shells.second])], axis=0)[k] for k in (0, 1))
    code = (shells.shell * types + low) * types + high
    lengths = len(shells.share)
    summed = (
        np.bincount(code, weight, lengths * types * types).reshape(lengths, types, types) / shells.share[:, None, None]
    )
    counts = np.bincount(section.kinds, minlength=types).astype(np.float64)
    a, b = np.array(type_pairs(types)).T
    rare = (counts[a] < FEWEST) | (counts[b] < FEWEST)
    possible = np.where(a == b, counts[a] * (counts[a] - 1) / 2, counts[a] * counts[b])
    k = np.prod(sides) * np.cumsum(summed[:, a, b], axis=0) / np.where(rare, np.nan, possible)
    return np.sqrt(k / np.pi) if section.coords.shape[1] == 2 else np.cbrt(3 * k / (4 * np.pi))


def cross_g(section: Section, lengths: Array, types: int) -> Array:
    """The distribution of distances to the nearest neighbour (G) of each ordered pair of types [lengths, types, types].

    The share of the first type's instances that have another of the second within a length; NaN where one is rare.
    """
    found = np.full((len(lengths), types, types), np.nan)
    members = [np.flatnonzero(section.kinds == kind) for kind in range(types)]
    for b, others in enumerate(members):
        if len(others) < FEWEST:
            continue
        nearest = KDTree(section.coords[others]).query(section.coords, k=2)[0]
        for a, own in enumerate(members):
            if len(own) >= FEWEST:
                distance = nearest[own, int(a == b)]
                found[:, a, b] = (distance[:, None] <= lengths).mean(0)
    return found


def moran(contacts: Array, counts: Array) -> Array:
    """Moran's I of each type [lengths, types], with weight 1 within the length; contacts [lengths, pairs]."""
    types = len(counts)
    pairs, p = type_pairs(types), counts / counts.sum()
    ordered = np.zeros((len(contacts), types, types))
    for k, (a, b) in enumerate(pairs):
        ordered[:, a, b] += contacts[:, k]
        ordered[:, b, a] += contacts[:, k]
    total = ordered.sum((1, 2))[:, None]
    same = ordered[:, np.arange(types), np.arange(types)]
    with np.errstate(invalid="ignore", divide="ignore"):
        return (same - 2 * p * ordered.sum(2) + p**2 * total) / (total * p * (1 - p))


def enrichment(contacts: Array) -> Array:
    """Neighbourhood enrichment z [lengths, pairs]: contacts against those with types dealt out anew (rows 1, ...)."""
    spread = contacts[1:].std(0)
    return np.divide(contacts[0] - contacts[1:].mean(0), spread, out=np.full(spread.shape, np.nan), where=spread > 0)


def envelope(contacts: Array) -> Array:
    """Where contacts leave the envelope of random labelling [lengths, pairs]: 1 above, -1 below all draws, else 0."""
    return (contacts[0] > contacts[1:].max(0)).astype(int) - (contacts[0] < contacts[1:].min(0)).astype(int)


@dataclass(frozen=True)
class ClassicalTest:
    """A test of the patients' means of L - length over all lengths; direction: sign of the association."""

    pair: tuple[int, int]
    p: float
    p_adjusted: float
    direction: int


def tested_l(curves: Array, lengths: Array, outcome: Outcome) -> list[ClassicalTest]:
    """One test for each pair, from L curves [patients, lengths, pairs]; p-values adjusted after Benjamini and Hochberg.

    Two classes: Welch's t-test; several: analysis of variance; a number or survival: correlation with ``targets``.
    Not adjusted for composition: the habit that this study is compared with.
    """
    with np.errstate(invalid="ignore"):
        values = (curves - lengths[:, None]).mean(1)
    pairs, p, direction = type_pairs(_types(values.shape[1])), [], []
    for k in range(values.shape[1]):
        known = np.isfinite(values[:, k])
        found = _tested(values[known, k], outcome.take(np.flatnonzero(known))) if known.any() else (1.0, 0.0)
        p.append(found[0])
        direction.append(int(np.sign(found[1])))
    adjusted = stats.false_discovery_control(np.array(p)) if p else []
    return [ClassicalTest(pair, a, float(b), c) for pair, a, b, c in zip(pairs, p, adjusted, direction, strict=True)]


def _tested(x: Array, outcome: Outcome) -> tuple[float, float]:
    if len(x) < 4 or np.ptp(x) == 0:
        return 1.0, 0.0
    y = outcome.targets()[:, 0]
    if outcome.kind != "classes":
        if np.ptp(y) == 0:
            return 1.0, 0.0
        statistic, p = np.asarray(stats.pearsonr(x, y), dtype=np.float64)
        return float(p), float(statistic)
    groups = [x[outcome.strata == code] for code in range(len(outcome.classes))]
    groups = [group for group in groups if len(group) > 1]
    if len(groups) < 2:
        return 1.0, 0.0
    if len(groups) > 2:
        return float(stats.f_oneway(*groups).pvalue), 0.0
    statistic, p = np.asarray(stats.ttest_ind(groups[1], groups[0], equal_var=False), dtype=np.float64)
    return (1.0, 0.0) if np.isnan(p) else (float(p), float(statistic))


def _types(pairs: int) -> int:
    return round((np.sqrt(8 * pairs + 1) - 1) / 2)

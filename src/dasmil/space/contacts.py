"""How many pairs of types lie within each length, as observed and with the types dealt out at random in a section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from dasmil.space.sections import Array, Kinds, Section, type_pairs

LENGTHS = 12
PAIRS_PER_SHELL = 50_000
"""Pairs of instances between two lengths that one section is counted by; of more, those of random instances."""
EXPECTED = 5.0
"""Contacts that chance must expect in a patient; with fewer its ratio is not used."""
BEYOND = 1.05  # of a regular grid of tiles, neighbours lie exactly one spacing apart


def length_grid(sections: Sequence[Section], count: int = LENGTHS) -> Array:
    """Lengths in equal ratios, from the usual distance of nearest neighbours to a quarter of the usual extent."""
    spacings, extents = [], []
    for section in sections:
        if len(section) > 1:
            some = section.coords[:: max(1, len(section) // 1000)]
            nearest = KDTree(section.coords).query(some, k=2)[0][:, 1]
            spacings.append(float(np.median(nearest)))
            sides = np.ptp(section.coords, axis=0)
            extents.append(float(sides[sides > 0].min(initial=sides.max())))
    shortest = BEYOND * float(np.median(spacings))
    return np.geomspace(shortest, max(float(np.median(extents)) / 4, 2 * shortest), count)


@dataclass(frozen=True, eq=False)
class Shells:
    """Pairs of instances by the shell (between two lengths) of their distance; share [shells] of all that are listed.

    distance: of each pair; every pair is listed once, in either order.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    shell: NDArray[np.int64]
    distance: Array
    share: Array


def find_shells(coords: Array, lengths: Array, seed: int = 0, most: int = PAIRS_PER_SHELL) -> Shells:
    """The pairs of a section within the largest length; where a shell has too many, those of random instances."""
    n, tree = len(coords), KDTree(coords)
    order = np.random.default_rng(seed).permutation(n)
    some = order[:300]
    near = np.array([tree.query_ball_point(coords[some], r, return_length=True).mean() - 1 for r in lengths])
    pairs = n * np.diff(near, prepend=0) / 2
    whole = int(np.argmax(pairs > most)) if (pairs > most).any() else len(lengths)
    parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    if whole:
        found = tree.query_pairs(lengths[whole - 1], output_type="ndarray")
        parts.append((found[:, 0], found[:, 1]))
    share = np.ones(len(lengths))
    for k in range(whole, len(lengths)):
        sources = order[: max(1, round(n * min(1.0, most / max(pairs[k], 1) / 2)))]
        share[k] = len(sources) * (2 * n - len(sources) - 1) / (n * (n - 1))
        parts.append(_around(tree, coords, sources, float(lengths[k - 1]) if k else 0.0, float(lengths[k])))
    first, second = (np.concatenate([part[side] for part in parts]).astype(np.int64) for side in (0, 1))
    distance = np.linalg.norm(coords[first] - coords[second], axis=1)
    shell = np.searchsorted(lengths, distance)
    keep = shell < len(lengths)  # rounding alone puts a pair beyond
    return Shells(first[keep], second[keep], shell[keep], distance[keep], share)


def _around(
    tree: KDTree, coords: Array, sources: NDArray[np.int64], low: float, high: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pairs with a source at one end at least, farther than low and not farther than high, each once."""
    found = KDTree(coords[sources]).sparse_distance_matrix(tree, high, output_type="ndarray")
    found = found[found["v"] > low]
    first, second = sources[found["i"]], found["j"].astype(np.int64)
    place = np.full(len(coords), len(coords))
    place[sources] = np.arange(len(sources))
    once = place[first] < place[second]  # between two sources a pair is found from both
    return first[once], second[once]


def count_contacts(shells: Shells, kinds: Kinds, types: int) -> Array:
    """Pairs of types in each shell [shells, pairs], scaled up to all pairs of the section."""
    place = _places(types)
    code = (kinds * types)[shells.first]
    code += kinds[shells.second]
    code += shells.shell * (types * types)
    counts = np.bincount(code, minlength=len(shells.share) * types * types).reshape(len(shells.share), -1)
    found = np.zeros((len(shells.share), types * (types + 1) // 2))
    np.add.at(found.T, place, counts.T)
    return found / shells.share[:, None]


def _places(types: int) -> NDArray[np.int64]:
    """For each ordered pair of types the number of the unordered one."""
    number = {pair: k for k, pair in enumerate(type_pairs(types))}
    return np.array([number[min(a, b), max(a, b)] for a in range(types) for b in range(types)])


def chance_of_pairs(counts: Array) -> Array:
    """The probability that two random instances are of each pair of types, from counts [types]."""
    n = counts.sum()
    a, b = np.array(type_pairs(len(counts))).T
    same = a == b
    return counts[a] * np.where(same, counts[b] - 1, 2 * counts[b]) / max(1.0, n * (n - 1))


@dataclass(frozen=True, eq=False)
class SectionCounts:
    """One section: observed contacts and those with the types dealt out anew [1 + draws, lengths, pairs], expected.

    All are within each length, so they grow with it; row 0 is as observed. expected [lengths, pairs] is the mean over
    all ways to deal out the types.
    """

    contacts: NDArray[np.float32]
    expected: Array


def count_section(section: Section, shells: Shells, types: int, draws: int, seed: int) -> SectionCounts:
    """Count a section as it is and ``draws`` times with its types permuted; positions and neighbours stay."""
    pairs = np.bincount(shells.shell, minlength=len(shells.share)) / shells.share
    chance = chance_of_pairs(np.bincount(section.kinds, minlength=types).astype(np.float64))
    rng = np.random.default_rng(seed + 1)
    rows = [count_contacts(shells, section.kinds, types)]
    rows += [count_contacts(shells, rng.permutation(section.kinds), types) for _ in range(draws)]
    contacts = np.cumsum(np.array(rows), axis=1).astype(np.float32)
    return SectionCounts(contacts, np.cumsum(pairs)[:, None] * chance)


def log_ratios(contacts: Array, expected: Array) -> Array:
    """log of observed by expected contacts, NaN where chance expects too few to say; a half on both removes the bias.

    contacts, expected: sums over the sections of a patient.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.log((contacts + 0.5) / (expected + 0.5))
    return np.where(expected >= EXPECTED, found, np.nan)

"""Who is near whom, from a tree: no matrix of pairs is ever made."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import KDTree
from torch import Tensor

from dasmil.errors import InputError

MOST_PAIRS = 10_000_000
"""Two hundred neighbours for each of 100,000 instances; their matrix takes about 1.5 GB."""


def nearest(coords: Tensor, k: int, section: Tensor | None = None) -> Tensor:
    """The k nearest instances of each [n, k], itself first; -1 where its section has fewer. Which of two that are
    equally far comes first is left open.
    """
    places, found = _places(coords), np.full((len(coords), k), -1, dtype=np.int64)
    for members in _sections(section, len(coords)):
        own = places[members]
        count = min(k, len(members))
        kept = np.flatnonzero(_numbers_at_place(own) < k)
        index = kept[KDTree(own[kept]).query(own, k=count)[1].reshape(len(members), count)]
        found[np.ix_(members, np.arange(count))] = members[_self_first(index)]
    return torch.from_numpy(found).to(coords.device)


def nearest_of_types(
    coords: Tensor, kinds: Tensor, count: int, section: Tensor | None = None, longest: float = float("inf")
) -> Tensor:
    """The distance [n, count] of each instance to the nearest other one of each type in its section; infinite where
    there is none within ``longest``. kinds [n]: the type of each instance.
    """
    places, own = _places(coords), kinds.cpu().numpy()
    found = np.full((len(places), count), np.inf)
    for members in _sections(section, len(coords)):
        for kind in np.unique(own[members]):
            of_kind = members[own[members] == kind]
            distance, which = KDTree(places[of_kind]).query(
                places[members], k=2, distance_upper_bound=np.nextafter(longest, np.inf)
            )
            itself = np.append(of_kind, -1)[np.asarray(which)[:, 0]] == members
            found[members, kind] = np.where(itself, distance[:, 1], distance[:, 0])
    return torch.from_numpy(found).to(coords.device)


def pairs_within(coords: Tensor, radius: float, section: Tensor | None = None) -> Tensor:
    """All pairs of two different instances at most ``radius`` apart, both ways [2, pairs], ordered by the first."""
    places, found = _places(coords), []
    sections = _sections(section, len(coords))
    together = sum(int(_numbers_at_place(places[members]).sum()) for members in sections)
    if together > MOST_PAIRS:
        raise InputError(
            f"{together:,} pairs of the {len(places):,} instances share a place, expected at most {MOST_PAIRS:,} "
            "pairs within the radius: are the coordinates those of the instances?"
        )
    trees = [(members, KDTree(places[members])) for members in sections]
    count = sum((int(tree.count_neighbors(tree, radius)) - len(members)) // 2 for members, tree in trees)
    if count > MOST_PAIRS:
        raise InputError(
            f"{count:,} pairs of the {len(places):,} instances lie within the radius {radius:g}, expected at most "
            f"{MOST_PAIRS:,}: choose a smaller radius"
        )
    for members, tree in trees:
        found.append(members[tree.query_pairs(radius, output_type="ndarray").reshape(-1, 2)])
    pairs = np.concatenate(found) if found else np.empty((0, 2), dtype=np.int64)
    both = np.concatenate([pairs, pairs[:, ::-1]])
    return torch.from_numpy(both[np.argsort(both[:, 0], kind="stable")].T.copy()).to(coords.device)


def _places(coords: Tensor) -> NDArray[np.float64]:
    places = coords.detach().double().cpu().numpy()
    if lost := int((~np.isfinite(places).all(-1)).sum()):
        raise InputError(
            f"{lost} of {len(places)} instances lie further away than float32 can count: are these coordinates lengths "
            "in micrometres or pixels?"
        )
    return places


def _sections(section: Tensor | None, n: int) -> list[NDArray[np.int64]]:
    """The instances of each section."""
    if section is None:
        return [np.arange(n)]
    numbers = section.cpu().numpy()
    return [np.flatnonzero(numbers == number) for number in np.unique(numbers)]


def _numbers_at_place(places: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many instances before it lie at an instance's very place. A tree cannot part these: it would go through all
    of them for each.
    """
    order = np.lexsort(places.T)
    row = np.arange(len(places))
    begins = np.r_[True, (np.diff(places[order], axis=0) != 0).any(1)][: len(places)]
    number = np.empty_like(row)
    number[order] = row - np.maximum.accumulate(np.where(begins, row, 0))
    return number


def _self_first(index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of neighbours that begin with the row's own number, also where another instance lies at the same place."""
    own = np.arange(len(index))[:, None]
    index = index.copy()
    lost = ~(index == own).any(1)
    index[lost, -1] = own[lost, 0]
    order = np.argsort(index != own, axis=1, kind="stable")
    return np.take_along_axis(index, order, 1)

"""How far instances of a cohort lie apart: what a model's length scale should start from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from scipy.spatial import KDTree

from dasmil.errors import DataError
from dasmil.types import Bag

ASKED = 500
"""Instances of a bag that are asked for their neighbours."""


def lies_apart(bag: Bag) -> bool:
    """Whether two instances of a section lie at different places."""
    coords = bag.coords if bag.section is None else torch.cat([bag.coords, bag.section[:, None].to(bag.coords)], 1)
    sections = 1 if bag.section is None else len(bag.section.unique())
    return len(coords.unique(dim=0)) > sections


def _some(bags: Sequence[Bag], most: int, rng: np.random.Generator) -> Iterator[Bag]:
    """At most so many bags, drawn at random, in their order."""
    chosen = range(len(bags)) if len(bags) <= most else np.sort(rng.choice(len(bags), most, replace=False))
    return (bags[int(number)] for number in chosen)


def pair_distances(bags: Sequence[Bag], *, pairs_per_bag: int = 2000, max_bags: int = 200, seed: int = 0) -> np.ndarray:
    """Distances of random pairs of instances of the same section, in the bags' unit; equally many from every bag."""
    rng = np.random.default_rng(seed)
    found: list[np.ndarray] = []
    for bag in _some(bags, max_bags, rng):
        n = len(bag)
        if n < 2:
            continue
        i = rng.integers(0, n, pairs_per_bag)
        j = (i + rng.integers(1, n, pairs_per_bag)) % n
        coords = bag.coords.numpy()
        distance = np.sqrt(((coords[i] - coords[j]).astype(np.float64) ** 2).sum(1))
        if bag.section is not None:
            section = bag.section.numpy()
            distance = distance[section[i] == section[j]]
        found.append(distance)
    distances = np.concatenate(found) if found else np.empty(0)
    if not (distances > 0).any():
        raise DataError("no two instances of a bag lie apart: distances cannot be learned from these bags")
    return distances[distances > 0]


def neighbour_distance(bags: Sequence[Bag], k: int, *, max_bags: int = 64, seed: int = 0) -> float:
    """The distance to the k-th nearest other instance of the section: the median over instances, then over bags.

    On a grid of tiles that is a tile's edge for k = 1 and its diagonal for k = 8. Instances at the same place do not
    count, and in smaller sections the farthest instance stands for the k-th.
    """
    rng = np.random.default_rng(seed)
    found: list[float] = []
    for bag in _some(bags, max_bags, rng):
        coords = bag.coords.numpy().astype(np.float64)
        section = np.zeros(len(bag), dtype=np.int64) if bag.section is None else bag.section.numpy()
        own: list[np.ndarray] = []
        for part in np.unique(section):
            places = np.unique(coords[section == part], axis=0)
            if len(places) > 1:
                asked = places if len(places) <= ASKED else rng.choice(places, ASKED, replace=False)
                nearest = min(k, len(places) - 1) + 1  # itself is the first
                own.append(KDTree(places).query(asked, k=nearest)[0][:, -1])
        if own:
            found.append(float(np.median(np.concatenate(own))))
    if not found:
        raise DataError("no two instances of a bag lie apart: distances cannot be learned from these bags")
    return float(np.median(found))


def neighbours_within(bags: Sequence[Bag], radius: float, *, max_bags: int = 8, seed: int = 0) -> float:
    """How many instances lie within the radius of one, itself included: the mean over some instances of some bags."""
    rng = np.random.default_rng(seed)
    chosen = range(len(bags)) if len(bags) <= max_bags else rng.choice(len(bags), max_bags, replace=False)
    counts = []
    for number in chosen:
        coords = bags[int(number)].coords.numpy().astype(np.float64)
        centres = coords[rng.integers(0, len(coords), ASKED)]
        counts.append(float(np.mean(KDTree(coords).query_ball_point(centres, radius, return_length=True))))
    return float(np.mean(counts))

"""Types of instances without labels: centres of k-means over whitened features, how near types come, and how often."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import KDTree

from dasmil.types import Bag

INSTANCES_PER_BAG = 200
PER_TYPE = 1000
"""Instances of one type in one bag that are looked at; of a common type some are always near."""
LOOKED_FROM = 2000
FAR = 10.0  # types that do not meet in a bag count as this many times its extent apart


def some_instances(bags: Sequence[Bag], within: int, seed: int = 0) -> NDArray[np.float32]:
    """The first ``within`` features of up to 200 random instances of every bag."""
    rng = np.random.default_rng(seed)
    return np.concatenate(
        [bag.features[torch.from_numpy(rng.permutation(len(bag))[:INSTANCES_PER_BAG]), :within].numpy() for bag in bags]
    )


def find_types(bags: Sequence[Bag], count: int, within: int, seed: int = 0) -> NDArray[np.float32]:
    """Centres [count, within] of the types that instances fall into, by their first ``within`` features."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    some = some_instances(bags, within, seed)
    count = min(count, len(np.unique(some, axis=0)))
    with threadpool_limits(1), warnings.catch_warnings():  # busy threads wait for each other longer than one takes
        warnings.simplefilter("ignore", ConvergenceWarning)  # cell types differ by rounding alone: fewer than count
        fitted = KMeans(count, n_init=2, max_iter=50, random_state=seed).fit(some)  # pyright: ignore[reportArgumentType]
    return fitted.cluster_centers_.astype(np.float32)


def type_of(features: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.int64]:
    """The nearest centre of every instance [n]."""
    x = features[:, : centres.shape[1]]
    return ((centres**2).sum(1) - 2 * x @ centres.T).argmin(1)


def composition(kinds: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """The share of every type [count]."""
    return np.bincount(kinds, minlength=count) / len(kinds)


def nearest_distances(bag: Bag, kinds: NDArray[np.int64], count: int, seed: int = 0) -> NDArray[np.float64]:
    """The smallest distance of two instances of each pair of types [pairs], in the order of ``type_pairs``.

    Instances in different sections have no distance.
    """
    return pair_distances(bag, [np.flatnonzero(kinds == kind) for kind in range(count)], seed)


def pair_distances(bag: Bag, members: Sequence[NDArray[np.int64]], seed: int = 0) -> NDArray[np.float64]:
    """The same for types that are given by the numbers of their instances and may overlap."""
    rng = np.random.default_rng(seed)
    places, extent = _places(bag)
    chosen = [rng.permutation(own)[:PER_TYPE] for own in members]
    trees = [KDTree(places[own]) if len(own) else None for own in chosen]
    pairs = type_pairs(len(members))
    found = np.full(len(pairs), FAR * extent)
    for number, (a, b) in enumerate(pairs):
        large, small = (a, b) if len(chosen[a]) >= len(chosen[b]) else (b, a)
        tree, own = trees[large], chosen[small]
        if tree is None or not len(own):
            continue
        nearest, which = tree.query(places[own], k=[1, 2])  # pyright: ignore[reportArgumentType]
        itself = chosen[large][np.minimum(which, len(chosen[large]) - 1)] == own[:, None]
        found[number] = min(found[number], np.where(itself, np.inf, nearest).min())
    return found


def shares_within(
    bag: Bag, members: Sequence[NDArray[np.int64]], lengths: NDArray[np.float64], seed: int = 0
) -> NDArray[np.float64]:
    """The share of all instances that are of a type (first of all: of any) and have one of another within a length.

    [types * types * lengths]: for any type and then each, for each other, for each length. At
    most 2,000 random instances are looked from, but at all others.
    """
    places, _ = _places(bag)
    some = np.sort(np.random.default_rng(seed).permutation(len(places))[:LOOKED_FROM])
    near = np.zeros((len(some), len(members), len(lengths)), np.float32)
    for number, own in enumerate(members):
        if not len(own):
            continue
        nearest, which = KDTree(places[own]).query(places[some], k=[1, 2])  # pyright: ignore[reportArgumentType]
        itself = own[np.minimum(which, len(own) - 1)] == some[:, None]
        near[:, number] = np.where(itself, np.inf, nearest).min(1)[:, None] <= lengths
    mine = np.zeros((len(members) + 1, len(places)), np.float32)
    mine[0] = 1.0
    for number, own in enumerate(members):
        mine[number + 1, own] = 1.0
    shares = (mine[:, some] @ near.reshape(len(some), -1)).reshape(len(mine), *near.shape[1:]) / len(some)
    other = np.concatenate([np.ones((1, len(members)), bool), ~np.eye(len(members), dtype=bool)])
    return shares[other].ravel().astype(np.float64)


def _places(bag: Bag) -> tuple[NDArray[np.float64], float]:
    """Coordinates in which sections lie far apart, and the extent of the bag."""
    places = bag.coords.double().numpy()
    extent = max(1.0, float(np.ptp(places, axis=0).max()))
    if bag.section is not None:
        apart = 2 * FAR * extent * bag.section.double().numpy()[:, None]
        places = np.concatenate([places, apart], axis=1)
    return places, extent


def type_pairs(count: int) -> list[tuple[int, int]]:
    """All pairs of types, also of a type with itself."""
    return [(a, b) for a in range(count) for b in range(a, count)]

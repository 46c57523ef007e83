"""The directions in which the instances of training bags differ: features that a hundred labels cannot spoil."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dasmil.candidates.standouts import MOST as MOST_STANDOUTS
from dasmil.candidates.standouts import Standouts, find_standouts
from dasmil.types import Bag

INSTANCES_PER_BAG = 400
ROWS = 25_000
"""Instances that are kept to look for types; with more, fewer of every bag."""
WHITENED = 256
"""Directions, at most, in which types are looked for, and 20 instances for each."""
FEWEST, MOST = 8, 16
"""How many directions within bags are kept at least, and how many principal components fill them up to."""
PRINCIPAL = 4
"""Principal components that are kept beside many types."""
BETWEEN = 8
"""How many directions are kept in which the means of bags differ besides."""
CLEARLY = 1.05  # a variance counts as more than noise when it is this many times what noise alone reaches
SMALLEST = 1e-6  # a direction with less than this share of the largest variance is rounding
NEW = 0.5  # of the variance of a principal component must be left beside what is kept already


@dataclass(frozen=True)
class Directions:
    """mean [f] and axes [f, k], each of variance one, those within bags first; within: how many these are.

    Differences within a bag are what instances are; differences between the means of bags are also stain and scanner.
    The first len(places) are those in which a type of instances stands out: it lies at ``places``, beyond ``limits``.
    """

    mean: Tensor
    axes: Tensor
    within: int
    places: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    limits: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        return self.axes.shape[1]

    def read(self, features: Tensor) -> Tensor:
        """Features [n, f] in these directions [n, k]."""
        return (features.float() - self.mean) @ self.axes


class Sample:
    """What the directions are computed from: instances of the training bags, collected bag by bag."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._within: NDArray[np.float64] | None = None
        self._count = 0
        self._means: list[NDArray[np.float64]] = []
        self._rows: list[NDArray[np.float32]] = []
        self._share = 1

    def add(self, bag: Bag) -> None:
        """Up to 400 random instances of a bag count, so that large slides do not outvote small ones."""
        if bag.features.ndim != 2:
            return
        chosen = np.sort(self._rng.permutation(len(bag))[:INSTANCES_PER_BAG])
        x = bag.features[torch.from_numpy(chosen)].double().numpy()
        mean = x.mean(0)
        rows = (x - mean).astype(np.float32)
        products = (rows.T @ rows).astype(np.float64)
        self._within = products if self._within is None else self._within + products
        self._count += len(x) - 1
        self._means.append(mean)
        self._rows.append(rows[:: self._share])
        if sum(map(len, self._rows)) > 2 * ROWS:
            self._share *= 2
            self._rows = [kept[::2] for kept in self._rows]

    def directions(self, most: int | None = None) -> Directions:
        """Where types stand out, the leading directions within bags, then those in which the means of bags differ.

        Principal components within bags: as many as have more variance than noise of the size of the median would show
        by chance (the edge of Marchenko and Pastur), until there are 16 directions, and at least 8. most: a limit for
        all of them that the user gave.
        """
        assert self._within is not None
        means = np.array(self._means)
        centre = means.mean(0)
        spectrum, axes = _sorted(self._within / max(1, self._count))
        edge = np.median(spectrum) * (1 + np.sqrt(len(centre) / max(1, self._count))) ** 2
        clear = int((spectrum > CLEARLY * edge).sum())
        usable = _kept(spectrum, min(WHITENED, max(FEWEST, self._count // 20)), float(spectrum[0]))
        white = axes[:, :usable] / np.sqrt(spectrum[:usable])
        standouts = self._standouts(white, most)
        target = max(MOST, len(standouts) + PRINCIPAL) if most is None else most
        kept = _with_principal(standouts.axes, min(max(clear, FEWEST), usable), target, FEWEST)
        within = white @ kept
        basis = np.linalg.qr(within)[0] if kept.shape[1] else within
        rest = means - centre
        rest = rest - (rest @ basis) @ basis.T
        more, others = _sorted(rest.T @ rest / max(1, len(rest) - 1))
        between = _kept(more, BETWEEN, float(max(spectrum[0], more[0])))
        if kept.shape[1] + between == 0:  # every instance is the same: there is nothing to read, in any direction
            within = axes[:, :1]
        chosen = np.concatenate([within, others[:, :between] / np.sqrt(more[:between])], axis=1)
        return Directions(
            torch.from_numpy(centre).float(),
            torch.from_numpy(chosen).float(),
            within.shape[1],
            standouts.places,
            standouts.limits,
        )

    def _standouts(self, white: NDArray[np.float64], most: int | None) -> Standouts:
        rows = np.concatenate(self._rows) @ white.astype(np.float32)
        searched = np.random.default_rng(0).permutation(len(self._rows)) % 2 == 0  # half of the bags, at random
        half = np.repeat(searched, [len(kept) for kept in self._rows])
        return find_standouts(rows, half, min(MOST_STANDOUTS, most or MOST_STANDOUTS))


def _with_principal(standouts: NDArray[np.float32], clear: int, target: int, fewest: int) -> NDArray[np.float64]:
    """The stand-outs [k, s] and, in what they leave, leading principal components (the first coordinates)."""
    kept = standouts.astype(np.float64)
    for number in range(len(kept)):
        wanted = kept.shape[1] < target and (number < clear or kept.shape[1] < fewest)
        if not wanted:
            break
        basis = np.linalg.qr(kept)[0] if kept.shape[1] else kept
        axis = -basis @ basis[number] if kept.shape[1] else np.zeros(len(kept))
        axis[number] += 1.0
        left = float(np.linalg.norm(axis))
        if left**2 > NEW:
            kept = np.concatenate([kept, axis[:, None] / left], axis=1)
    return kept


def _sorted(covariance: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    variances, axes = np.linalg.eigh(covariance)
    return variances[::-1], axes[:, ::-1]


def _kept(variances: NDArray[np.float64], most: int, largest: float) -> int:
    return min(most, int((variances > SMALLEST * largest).sum()))


class WhitenedBags(Sequence[Bag]):
    """The same bags with their features read in these directions."""

    def __init__(self, bags: Sequence[Bag], directions: Directions) -> None:
        self.bags, self.directions = bags, directions

    def __len__(self) -> int:
        return len(self.bags)

    def __getitem__(self, index: int) -> Bag:  # pyright: ignore[reportIncompatibleMethodOverride]
        bag = self.bags[index]
        return replace(bag, features=self.directions.read(bag.features))

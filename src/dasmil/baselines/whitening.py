"""The directions in which the instances of training bags differ: features that a hundred labels cannot spoil."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dasmil.types import Bag

INSTANCES_PER_BAG = 400
FEWEST, MOST = 8, 32
"""How many directions within bags are kept, at least and at most."""
BETWEEN = 8
"""How many directions are kept in which the means of bags differ besides."""
CLEARLY = 1.05  # a variance counts as more than noise when it is this many times what noise alone reaches
SMALLEST = 1e-6  # a direction with less than this share of the largest variance is rounding


@dataclass(frozen=True)
class Directions:
    """mean [f] and axes [f, k], each of variance one, those within bags first; within: how many these are.

    Differences within a bag are what instances are; differences between the means of bags are also stain and scanner.
    """

    mean: Tensor
    axes: Tensor
    within: int

    def __len__(self) -> int:
        return self.axes.shape[1]

    def read(self, features: Tensor) -> Tensor:
        """Features [n, f] in these directions [n, k]."""
        return (features.float() - self.mean) @ self.axes


class Sample:
    """What the directions are computed from: sums over instances of the training bags, collected bag by bag."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._within: NDArray[np.float64] | None = None
        self._count = 0
        self._means: list[NDArray[np.float64]] = []

    def add(self, bag: Bag) -> None:
        """Up to 400 random instances of a bag count, so that large slides do not outvote small ones."""
        if bag.features.ndim != 2:
            return
        chosen = np.sort(self._rng.permutation(len(bag))[:INSTANCES_PER_BAG])
        x = bag.features[torch.from_numpy(chosen)].double().numpy()
        mean = x.mean(0)
        x = x - mean
        products = x.T @ x
        self._within = products if self._within is None else self._within + products
        self._count += len(x) - 1
        self._means.append(mean)

    def directions(self, most: int = MOST) -> Directions:
        """The leading directions within bags, then those in which the means of bags differ besides.

        Within bags as many as have more variance than noise of the size of the median would show by chance (the edge
        of Marchenko and Pastur), but at least 8 and at most ``most``.
        """
        assert self._within is not None
        means = np.array(self._means)
        centre = means.mean(0)
        spectrum, axes = _sorted(self._within / max(1, self._count))
        edge = np.median(spectrum) * (1 + np.sqrt(len(centre) / max(1, self._count))) ** 2
        clear = int((spectrum > CLEARLY * edge).sum())
        within = _kept(spectrum, min(max(clear, FEWEST), most), float(spectrum[0]))
        rest = means - centre
        rest = rest - (rest @ axes[:, :within]) @ axes[:, :within].T
        more, others = _sorted(rest.T @ rest / max(1, len(rest) - 1))
        between = _kept(more, BETWEEN, float(max(spectrum[0], more[0])))
        if within + between == 0:  # every instance is the same: there is nothing to read, in any direction
            within, spectrum = 1, np.ones(1)
        scales = np.sqrt(np.concatenate([spectrum[:within], more[:between]]))
        chosen = np.concatenate([axes[:, :within], others[:, :between]], axis=1) / scales
        return Directions(torch.from_numpy(centre).float(), torch.from_numpy(chosen).float(), within)


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

"""Which digits a bag holds, where they lie, and what makes the bag positive."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dasmil.data.mnist.digits import SIDE
from dasmil.errors import InputError

_ATTEMPTS = 20_000
"""Draws of one bag before its rule counts as unsatisfiable; the default sets need fewer than a hundred."""


@dataclass(frozen=True, eq=False)
class Layout:
    """A bag without its images: digits [n] int64, centres [n, 2] float32 (x, y in pixels), keys [n] bool, label."""

    digits: np.ndarray
    centres: np.ndarray
    keys: np.ndarray
    label: int


@dataclass(frozen=True, kw_only=True)
class CollageRule:
    """MNIST-COLLAGE: positive iff the two target digits lie nearer than `threshold` pixels (farther: INV).

    The bag size is a Gaussian draw cut to an integer, at least 2.
    Departs from the paper: it says rounded; the authors' program, which made the published sets, cuts.
    """

    collage_size: int = 256
    threshold: float = 80.0
    targets: tuple[int, ...] = (0, 1)
    bag_size_mean: float = 10.0
    bag_size_std: float = 2.0
    min_distance: float = 20.0
    farther: bool = False

    def __post_init__(self) -> None:
        _check_sizes(self.targets, self.bag_size_mean, self.bag_size_std)
        if len(self.targets) != 2:
            raise InputError(f"targets are {self.targets}, expected the two digits whose distance decides")
        if self.collage_size <= SIDE:
            raise InputError(f"collage_size is {self.collage_size} px, expected more than a digit, {SIDE} px")
        if self.threshold <= 0 or self.min_distance < 0:
            raise InputError(
                f"threshold {self.threshold} px and min_distance {self.min_distance} px: "
                "expected a positive threshold and a minimum distance of at least 0"
            )

    def draw(self, random: np.random.RandomState, wanted: int) -> Layout:
        """Draw bags until one has the wanted label; the order of the draws is that of the published sets."""
        n = max(2, int(random.normal(self.bag_size_mean, self.bag_size_std)))
        for _ in range(_ATTEMPTS):
            digits = random.randint(0, 10, n)
            centres = self._draw_centres(random, n).astype(np.float32)
            keys = self.keys(digits, centres)
            if keys.any() == bool(wanted):
                return Layout(digits.astype(np.int64), centres, keys, wanted)
        raise InputError(
            f"no bag of {n} digits with label {wanted} in {_ATTEMPTS:,} draws: change threshold "
            f"({self.threshold} px), collage_size ({self.collage_size} px) or bag_size_mean ({self.bag_size_mean})"
        )

    def keys(self, digits: np.ndarray, centres: np.ndarray) -> np.ndarray:
        """[n] bool: the instances that belong to a pair of target digits at a distance that makes the bag positive."""
        first, second = (np.flatnonzero(digits == target) for target in self.targets)
        keys = np.zeros(len(digits), bool)
        if len(first) and len(second):
            step = centres[first][:, None] - centres[second][None]
            distance = np.sqrt((step * step).sum(-1))
            hit = distance > self.threshold if self.farther else distance < self.threshold
            hit &= first[:, None] != second[None]
            keys[first[hit.any(1)]] = True
            keys[second[hit.any(0)]] = True
        return keys

    def _draw_centres(self, random: np.random.RandomState, n: int) -> np.ndarray:
        one, other = _pairs(n)
        for _ in range(_ATTEMPTS):
            centres = random.uniform(SIDE / 2, self.collage_size - SIDE / 2, (n, 2))
            step = centres[one] - centres[other]
            if ((step * step).sum(1) >= self.min_distance**2).all():
                return centres
        raise InputError(
            f"{n} digits at least {self.min_distance} px apart do not fit into a collage of {self.collage_size} px: "
            "reduce min_distance or bag_size_mean, or enlarge collage_size"
        )


@dataclass(frozen=True, kw_only=True)
class BagsRule:
    """MNIST-BAGS (Ilse et al. 2018): positive iff the bag holds every one of the target digits; no positions."""

    targets: tuple[int, ...] = (9,)
    bag_size_mean: float = 10.0
    bag_size_std: float = 2.0

    def __post_init__(self) -> None:
        _check_sizes(self.targets, self.bag_size_mean, self.bag_size_std)

    def draw(self, random: np.random.RandomState, wanted: int) -> Layout:
        """Draw bags until one has the wanted label; all centres are the origin."""
        n = max(2, int(random.normal(self.bag_size_mean, self.bag_size_std)))
        for _ in range(_ATTEMPTS):
            digits = random.randint(0, 10, n)
            if all((digits == target).any() for target in self.targets) == bool(wanted):
                keys = np.isin(digits, self.targets) if wanted else np.zeros(n, bool)
                return Layout(digits.astype(np.int64), np.zeros((n, 2), np.float32), keys, wanted)
        raise InputError(
            f"no bag of {n} digits with label {wanted} in {_ATTEMPTS:,} draws: raise bag_size_mean "
            f"({self.bag_size_mean}) or take fewer targets {self.targets}"
        )


Rule = CollageRule | BagsRule


@lru_cache(maxsize=64)
def _pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(n, 1)


def _check_sizes(targets: tuple[int, ...], mean: float, std: float) -> None:
    if not targets or any(target not in range(10) for target in targets):
        raise InputError(f"targets are {targets}, expected digits from 0 to 9")
    if mean < 2 or std < 0:
        raise InputError(
            f"bag_size_mean {mean} and bag_size_std {std}: expected a mean of at least 2 and a spread of at least 0"
        )

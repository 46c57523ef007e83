"""How far the features of slides lie from those of the training slides: a distance, and whether it is unusual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dasmil.errors import InputError
from dasmil.stats.resample import patient_numbers

Array = NDArray[np.float64]
LEVEL = 0.01
"""A slide is unusual if at most this share of training slides lies as far from those of other patients."""
FEWEST_PATIENTS = 10
NO_SPREAD = 1e-3
"""Spreads below this share of the usual one are raised to it: a constant feature has none."""


@dataclass(frozen=True, eq=False)
class Domain:
    """Training slides: centre and spread of their numbers [k]; distances [n] of each from slides of other patients."""

    centre: Array
    spread: Array
    distances: Array

    def standardised(self, numbers: Array) -> Array:
        """Slides [m, k] in units of the spread of training slides."""
        return (np.asarray(numbers, dtype=np.float64) - self.centre) / self.spread

    def distance(self, numbers: Array) -> Array:
        """Root mean square of the standardised numbers [m]; about 1 for a slide like those of training."""
        return np.sqrt(np.square(self.standardised(numbers)).mean(1))

    def share_as_far(self, distance: Array) -> Array:
        """The share of training slides at this distance or farther, the slide itself counted as one of them [m]."""
        own = np.sort(self.distances)
        return (1 + len(own) - np.searchsorted(own, distance, side="left")) / (len(own) + 1)

    def unusual(self, distance: Array) -> NDArray[np.bool_]:
        """Whether a slide lies farther than 99 % of training slides do (of fewer than 100: than all)."""
        return self.share_as_far(distance) <= max(LEVEL, 1 / (len(self.distances) + 1)) + 1e-12


def fit_domain(numbers: Array, patients: Sequence[str]) -> Domain:
    """From slides [n, k] and their patients; a training slide is measured from the slides of all other patients."""
    x = np.asarray(numbers, dtype=np.float64)
    owner = patient_numbers(patients)
    count = int(owner.max()) + 1
    if count < FEWEST_PATIENTS:
        raise InputError(f"{count} training patients are too few to tell unusual slides: expected {FEWEST_PATIENTS}")
    centre = x.mean(0)
    z = x - centre
    spread = z.std(0, ddof=1)
    floor = NO_SPREAD * float(np.sqrt(np.square(spread).mean())) or 1.0
    size = np.bincount(owner)
    member = np.zeros((count, len(x)))
    member[owner, np.arange(len(x))] = 1
    first, second = member @ z, member @ z**2
    left = (len(x) - size)[:, None]
    middle = (first.sum(0) - first) / left
    variance = ((second.sum(0) - second) - left * middle**2) / np.maximum(left - 1, 1)
    own = np.maximum(np.sqrt(np.maximum(variance, 0)), floor)
    distances = np.sqrt(np.square((z - middle[owner]) / own[owner]).mean(1))
    return Domain(centre, np.maximum(spread, floor), distances)

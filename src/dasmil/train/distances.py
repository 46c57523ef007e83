"""Where learned distances start: lengths that occur in the training bags, so that a run finds its scale by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.data.distances import lies_apart, neighbour_distance, pair_distances
from dasmil.models import MODELS
from dasmil.train.feed import Feed
from dasmil.train.job import Job

SAMPLED_BAGS = 64
PAIRS_PER_BAG = 20_000
NEAREST = 3.0  # the smallest start: about the distance to the third neighbour
WIDEST_LEVEL = 0.9  # the largest start: 90 % of all pairs are closer
ROUNDING = 1 + 1e-5  # so that neighbours on a grid, whose places are rounded to float32, are all within


@dataclass(frozen=True)
class Lengths:
    """Distances between instances of the training bags: a sorted sample, and the median bag size."""

    sample: NDArray[np.float64]
    bag_size: float

    def at(self, share: float) -> float:
        """A length between near neighbours (share 0) and the whole bag (share 1), evenly in log(rank).

        It is the quantile of all pair distances at a level between 3 / bag size and 0.9: about the distance to the
        k-th neighbour, k from 3 to 0.9 times the bag size. In a plane that is evenly spaced in the logarithm of the
        length, because nothing is known beforehand about the scale that matters.
        """
        lowest = min(NEAREST / self.bag_size, WIDEST_LEVEL)
        level = lowest ** (1 - share) * WIDEST_LEVEL**share
        return float(np.quantile(self.sample, level))

    @property
    def extent(self) -> float:
        """The largest distance in the sample."""
        return float(self.sample[-1])


def measure_lengths(feed: Feed) -> Lengths:
    """Distances of random pairs in up to 64 training bags; every bag counts the same."""
    sample = pair_distances(feed.bags, pairs_per_bag=PAIRS_PER_BAG, max_bags=SAMPLED_BAGS)
    return Lengths(np.sort(sample), float(np.median(feed.facts.sizes)))


def start_of(number: int) -> float:
    """Share of start 0, 1, 2, ...: 1/2, 1/4, 3/4, 1/8, 5/8, ... (van der Corput), so each tries another length."""
    share, step, number = 0.0, 0.5, number + 1
    while number:
        share += step * (number & 1)
        number >>= 1
        step /= 2
    return share


def without_places(job: Job, feed: Feed) -> Job:
    """The job as it is; where no two instances of a training bag lie apart, one that learns nothing of distances."""
    if job.position != "relative" or any(lies_apart(bag) for bag in feed.bags):
        return job
    options = {"distance_scale": 1.0, **MODELS[job.model].without_distances(job.options)}
    return replace(job, options=options, learns_distances=False, at_one_place=True)


def with_scale(job: Job, feed: Feed) -> tuple[dict[str, Any], Lengths | None]:
    """Options with a distance_scale, and the lengths that theta may start from (None: start as the model says).

    A given distance_scale stays. Else it is twice the middle length for a model with learned distances (theta then
    starts at 0.5), the distance to a neighbour for models that count in tiles, and the largest distance in the training
    bags for other models that look at distances, or when learned ones do not start from the data. Distances are
    measured only where one of these needs them.
    """
    options = dict(job.options)
    if job.position != "relative":  # "absolute" models look at places, not at distances
        return options, None
    if "distance_scale" in options and not job.learns_distances:
        return options, None
    if (k := MODELS[job.model].scale_neighbour) is not None:
        options.setdefault("distance_scale", ROUNDING * neighbour_distance(feed.bags, k))
        return options, None
    lengths = measure_lengths(feed)
    options.setdefault("distance_scale", 2 * lengths.at(0.5) if job.learns_distances else lengths.extent)
    return options, lengths if job.learns_distances else None


def with_start(name: str, options: Mapping[str, Any], lengths: Lengths | None, start: int) -> dict[str, Any]:
    """Options with learned distances that begin at the length of this number; what was given explicitly stays."""
    if lengths is None:
        return dict(options)
    return MODELS[name].starting_at(options, lengths.at, start_of(start))

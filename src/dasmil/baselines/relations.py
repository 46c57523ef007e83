"""Which two types of instances, how near to each other, go with the label: a scan that costs seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dasmil.baselines.prototypes import find_types, nearest_distances, type_of, type_pairs
from dasmil.stats import auroc
from dasmil.types import Bag

COUNTS = (8, 12, 16, 24)
"""Numbers of types that are tried: nobody knows beforehand how many there are."""


@dataclass(frozen=True, eq=False)
class Relation:
    """Two types of instances by their centres in whitened features [within], and the length that tells classes apart.

    auroc: of the smallest distance between the two types, on the bags that were scanned; near_is: the class (0 or 1)
    of the bags in which they come near.
    """

    first: NDArray[np.float32]
    second: NDArray[np.float32]
    length: float
    near_is: int
    auroc: float


def find_relations(bags: Sequence[Bag], labels: NDArray[np.int64], within: int, most: int) -> list[Relation]:
    """The pairs of types whose smallest distance tells class 1 from class 0 best, best first; two per number of types.

    bags: with whitened features. With four numbers of types some hundred pairs are tried: on a hundred bags the best
    of them reaches an AUROC of about 0.7 by chance alone, so other bags have to confirm what is found.
    """
    found: list[Relation] = []
    for count in COUNTS:
        centres = find_types(bags, count, within)
        kinds = [type_of(bag.features.numpy(), centres) for bag in bags]
        distances = np.array(
            [nearest_distances(bag, kind, len(centres)) for bag, kind in zip(bags, kinds, strict=True)]
        )
        pairs = type_pairs(len(centres))
        scores = np.array([auroc(-column, labels == 1)[0] for column in distances.T])
        best = np.argsort(-np.abs(scores - 0.5), kind="stable")[:2] if pairs else []
        for number in best:
            a, b = pairs[number]
            near_is = int(scores[number] >= 0.5)
            length = separating_length(distances[:, number], labels == near_is)
            score = max(scores[number], 1 - scores[number])
            found.append(Relation(centres[a], centres[b], length, near_is, float(score)))
    return sorted(found, key=lambda relation: -relation.auroc)[:most]


def separating_length(distances: NDArray[np.float64], near: NDArray[np.bool_]) -> float:
    """The length below which the bags of ``near``, and above which the others lie best (in the middle of the gap)."""
    order = np.argsort(distances, kind="stable")
    sorted_distances, sorted_near = distances[order], near[order]
    right = np.cumsum(sorted_near) / max(1, near.sum()) + 1 - np.cumsum(~sorted_near) / max(1, (~near).sum())
    cut = int(right[:-1].argmax())
    low, high = sorted_distances[cut], sorted_distances[cut + 1]
    return float(np.sqrt(max(low, 1e-9) * max(high, 1e-9))) if low > 0 else float(high / 2)

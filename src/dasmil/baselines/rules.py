"""What a single number says of a bag: the share of a type of instances, or how near two types come. A scan of seconds.

Which number it is, training bags say, and how much it is worth, training bags that did not choose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dasmil.baselines.prototypes import find_types, pair_distances, type_of, type_pairs
from dasmil.baselines.question import Question
from dasmil.baselines.whitening import Directions
from dasmil.types import Bag

COUNTS = (8, 12, 16, 24)
"""Numbers of k-means types that are tried; the first stand beside the types that stand out."""

RuleKind = Literal["share", "near"]


@dataclass(frozen=True, eq=False)
class Rule:
    """One or two types of instances by where they lie in whitened features [within], and where bags part.

    value: the share of the type, or the distance between the two, at which they part; score: on the bags scanned (the
    AUROC of classes).
    """

    kind: RuleKind
    first: NDArray[np.float32]
    second: NDArray[np.float32]
    value: float
    score: float

    @property
    def types(self) -> list[NDArray[np.float32]]:
        """The places of its one or two types; one, too, where instances of a type come near each other."""
        alone = self.kind == "share" or np.array_equal(self.first, self.second)
        return [self.first] if alone else [self.first, self.second]


@dataclass(frozen=True, eq=False)
class Finding:
    """The best rules of a kind, and what the best one of other bags says [bags], by folds of the bags scanned."""

    kind: RuleKind
    rules: list[Rule]
    said: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scan:
    """All numbers of all bags: shares [bags, types], distances [bags, pairs], and the places of the types in each."""

    shares: NDArray[np.float64]
    distances: NDArray[np.float64]
    types: list[NDArray[np.float32]]
    pairs: list[tuple[NDArray[np.float32], NDArray[np.float32]]]

    def part(self, chosen: NDArray[np.int64]) -> Scan:
        """The same of some of the bags."""
        return Scan(self.shares[chosen], self.distances[chosen], self.types, self.pairs)


def scan_bags(bags: Sequence[Bag], directions: Directions) -> Scan:
    """bags: with features read in the directions. No label is looked at."""
    within, stand = directions.within, len(directions.places)
    own = np.zeros((stand, within), np.float32)
    own[np.arange(stand), np.arange(stand)] = directions.places
    systems = [(find_types(bags, count, within), own if count == COUNTS[0] else own[:0]) for count in COUNTS]
    shares: list[list[NDArray[np.float64]]] = [[] for _ in bags]
    distances: list[list[NDArray[np.float64]]] = [[] for _ in bags]
    for centres, others in systems:
        for row, bag in enumerate(bags):
            x = bag.features.numpy()
            kinds = type_of(x, centres)
            members = [np.flatnonzero(kinds == kind) for kind in range(len(centres))]
            members += [np.flatnonzero(x[:, axis] > directions.limits[axis]) for axis in range(len(others))]
            shares[row].append((np.array([len(some) for some in members]) + 0.5) / len(bag))
            distances[row].append(pair_distances(bag, members))
    places = [np.concatenate(system) for system in systems]
    return Scan(
        np.array([np.concatenate(row) for row in shares]),
        np.array([np.concatenate(row) for row in distances]),
        [place for system in places for place in system],
        [(system[a], system[b]) for system in places for a, b in type_pairs(len(system))],
    )


def find_rules(scan: Scan, asked: Question, patients: Sequence[str], most: int) -> list[Finding]:
    """For shares and for distances the rules that tell best what is asked, best first, at most so many.

    Hundreds of numbers are tried: on a hundred bags the best of them reaches an AUROC of about 0.7 by chance alone.
    ``Finding.said`` tells what is left of that on bags that did not choose.
    """
    zeros = np.zeros(0, np.float32)
    kinds: list[tuple[RuleKind, NDArray[np.float64], list[tuple[NDArray[np.float32], NDArray[np.float32]]]]] = [
        ("share", scan.shares, [(place, zeros) for place in scan.types]),
        ("near", scan.distances, scan.pairs),
    ]
    found = []
    for kind, values, places in kinds:
        columns = np.log(np.maximum(values, 1e-9))
        scores = asked.scores(columns)
        rules = []
        for number in _ranked(columns, asked, scores)[:most]:
            first, second = places[number]
            small = asked.residuals if scores[number] < 0.5 else -asked.residuals
            score = float(max(scores[number], 1 - scores[number]))
            rules.append(Rule(kind, first, second, parting_value(values[:, number], small), score))
        found.append(Finding(kind, rules, cross_fitted(columns, asked, patients)))
    return found


def cross_fitted(columns: NDArray[np.float64], asked: Question, patients: Sequence[str]) -> NDArray[np.float64]:
    """What the best column says [bags], chosen and weighed on the other folds of patients; 0 without folds."""
    said = np.zeros(len(columns))
    for rest, fold in asked.folds(patients):
        known = asked.part(rest)
        if not known.rarest:
            continue
        best = _ranked(columns[rest], known, known.scores(columns[rest]))[0]
        centre, spread = columns[rest, best].mean(), max(columns[rest, best].std(), 1e-9)
        x = ((columns[:, best] - centre) / spread)[:, None]
        weights, constant = known.fitted(x[rest])
        said[fold] = x[fold] @ weights + constant
    return said


def _ranked(columns: NDArray[np.float64], asked: Question, scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Columns from the best on; where several order the bags alike, the wider gap decides."""
    apart = np.abs(asked.residuals @ columns) / np.maximum(columns.std(0), 1e-9)
    return np.lexsort((-apart, -np.round(np.abs(scores - 0.5), 9)))


def parting_value(values: NDArray[np.float64], small: NDArray[np.float64]) -> float:
    """The value below which most of ``small`` [bags] (which sums to 0) lies; in the middle of the gap.

    Of two classes, ``small`` being their residuals, it is the cut of Youden.
    """
    order = np.argsort(values, kind="stable")
    ordered, own = values[order], np.cumsum(small[order])
    cut = int(own[:-1].argmax()) if len(values) > 1 else 0
    low, high = ordered[cut], ordered[min(cut + 1, len(ordered) - 1)]
    return float(np.sqrt(max(low, 1e-9) * max(high, 1e-9))) if low > 0 else float(high / 2)

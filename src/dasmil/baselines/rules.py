"""What a single number says of a bag: the share of a type of instances, how near two types come, or how often. Seconds.

Which number it is, training bags say, and how much it is worth, training bags that did not choose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from dasmil.baselines.question import Question
from dasmil.candidates.types_of_instances import (
    composition,
    find_types,
    pair_distances,
    shares_within,
    some_instances,
    type_of,
    type_pairs,
)
from dasmil.candidates.whitening import Directions
from dasmil.types import Bag

COUNTS = (8, 12, 16, 24)
"""Numbers of k-means types that are tried; the first stand beside the types that stand out."""

LENGTHS = 7
"""Lengths within which instances are counted, from neighbours to a quarter of a usual bag."""
COUNTED = 2
"""Systems of types, the smallest, between which instances are counted; of a number, which says more, all are."""

CLEARLY = 2.0
"""Standard errors by which numbers of instances have to tell more than their shares."""

RuleKind = Literal["share", "near", "within"]


@dataclass(frozen=True, eq=False)
class Type:
    """A type of instances: where it lies in whitened features, ``place`` [within], and its share of all instances."""

    place: NDArray[np.float32]
    share: float

    @property
    def reading(self) -> tuple[NDArray[np.float32], float]:
        """Weights [within] and constant of a number that is 1 at the place and 0 at the mean of all other instances.

        The mean of all lies at 0, so that of the others at -share / (1 - share) of the place: far from 0 for a type
        that is common.
        """
        rest = 1 - self.share
        return rest * self.place / max(float(np.square(self.place).sum()), 1e-9), self.share


@dataclass(frozen=True, eq=False)
class Rule:
    """One or two types of instances, and where bags part.

    share: how many instances are of the type ``first``; near: how near one of ``first`` comes to one of ``second``;
    within: how many are of ``first`` (None: of any) and have one of another type ``second`` within ``length``. value:
    the share or the distance at which bags part; score: on the bags scanned (the AUROC of classes).
    """

    kind: RuleKind
    first: Type | None
    second: Type | None
    value: float
    score: float
    length: float = 0.0

    @property
    def types(self) -> list[Type]:
        """Its one or two types; one, too, where instances of a type come near each other."""
        both = [self.first] if self.first is self.second else [self.first, self.second]
        return [one for one in both if one is not None]


@dataclass(frozen=True, eq=False)
class Finding:
    """The best rules of a kind, and what the best one of other bags says [bags], by folds of the bags scanned."""

    kind: RuleKind
    rules: list[Rule]
    said: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Columns:
    """Numbers of one kind: values [bags, m], and of each its types and its length."""

    kind: RuleKind
    values: NDArray[np.float64]
    types: list[tuple[Type | None, Type | None, float]]


@dataclass(frozen=True, eq=False)
class Scan:
    """All numbers of all bags, kind by kind, the simplest first."""

    kinds: list[Columns]

    def part(self, chosen: NDArray[np.int64]) -> Scan:
        """The same of some of the bags."""
        return Scan([Columns(kind.kind, kind.values[chosen], kind.types) for kind in self.kinds])


def scan_bags(bags: Sequence[Bag], directions: Directions, counted: int = COUNTED) -> Scan:
    """bags: with features read in the directions; counted: systems of types between which instances are counted. No
    label is looked at.
    """
    within, stand = directions.within, len(directions.places)
    own = np.zeros((stand, within), np.float32)
    own[np.arange(stand), np.arange(stand)] = directions.places
    systems = [(find_types(bags, count, within), own if count == COUNTS[0] else own[:0]) for count in COUNTS]
    known = _types(bags, systems, directions)
    lengths = _lengths(bags)
    rows: dict[RuleKind, list[NDArray[np.float64]]] = {"share": [], "near": [], "within": []}
    for bag in bags:
        x, shares, distances, counts = bag.features.numpy(), [], [], []
        for number, (centres, others) in enumerate(systems):
            kinds = type_of(x, centres)
            members = [np.flatnonzero(kinds == kind) for kind in range(len(centres))]
            members += [np.flatnonzero(x[:, axis] > directions.limits[axis]) for axis in range(len(others))]
            shares.append((np.array([len(some) for some in members]) + 0.5) / len(bag))
            distances.append(pair_distances(bag, members))
            if number < counted:
                members[: len(centres)] = [_like(x[:, :within], kind) for kind in known[number][: len(centres)]]
                counts.append(shares_within(bag, members, lengths) + 0.5 / len(bag))
        rows["share"].append(np.concatenate(shares))
        rows["near"].append(np.concatenate(distances))
        rows["within"].append(np.concatenate(counts))
    types: dict[RuleKind, list[tuple[Type | None, Type | None, float]]] = {
        "share": [(one, None, 0.0) for system in known for one in system],
        "near": [(system[a], system[b], 0.0) for system in known for a, b in type_pairs(len(system))],
        "within": [
            (None if first < 0 else system[first], system[second], float(length))
            for system in known[:counted]
            for first in range(-1, len(system))
            for second in range(len(system))
            if first != second
            for length in lengths
        ],
    }
    return Scan([Columns(kind, np.array(rows[kind]), types[kind]) for kind in types])


def _types(
    bags: Sequence[Bag], systems: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]], directions: Directions
) -> list[list[Type]]:
    """The types of every system, centres of k-means and then those that stand out, with their shares."""
    some = some_instances(bags, directions.within)
    beyond = (some[:, : len(directions.limits)] > directions.limits).mean(0)
    return [
        [Type(place, float(share)) for place, share in zip(centres, composition(type_of(some, centres), len(centres)))]
        + [Type(place, float(share)) for place, share in zip(others, beyond)]
        for centres, others in systems
    ]


def _like(x: NDArray[np.float32], kind: Type) -> NDArray[np.int64]:
    """The instances that are counted as of a type: those that attention can tell so, which k-means may not know."""
    weights, constant = kind.reading
    return np.flatnonzero(x @ weights + constant > 0.5)


def _lengths(bags: Sequence[Bag]) -> NDArray[np.float64]:
    """Lengths from one and a half times the distance of neighbours to a quarter of the extent of a usual bag."""
    some = bags[:: max(1, len(bags) // 20)]
    spacing = np.median([float(np.median(_spacing(bag.coords.double().numpy()))) for bag in some])
    extent = np.median([float(np.ptp(bag.coords.numpy(), axis=0).max()) for bag in some])
    shortest = max(1.5 * float(spacing), 1e-6 * float(extent), 1e-9)
    return np.geomspace(shortest, max(float(extent) / 4, shortest), LENGTHS)


def _spacing(places: NDArray[np.float64]) -> NDArray[np.float64]:
    some = places[np.random.default_rng(0).permutation(len(places))[:500]]
    nearest = KDTree(places).query(some, k=min(2, len(places)))[0]
    return np.asarray(nearest).reshape(len(some), -1)[:, -1]


def find_rules(scan: Scan, asked: Question, patients: Sequence[str], most: int) -> list[Finding]:
    """For every kind the rules that tell best what is asked, best first, at most so many.

    Thousands of numbers are tried: on a hundred bags the best of them reaches an AUROC of about 0.7 by chance alone.
    ``Finding.said`` tells what is left of that on bags that did not choose.
    """
    found = []
    for numbers in scan.kinds:
        columns = np.log(np.maximum(numbers.values, 1e-9))
        scores = asked.scores(columns)
        rules = []
        for number in _ranked(columns, asked, scores)[:most]:
            first, second, length = numbers.types[number]
            small = asked.residuals if scores[number] < 0.5 else -asked.residuals
            score = float(max(scores[number], 1 - scores[number]))
            value = parting_value(numbers.values[:, number], small)
            rules.append(Rule(numbers.kind, first, second, value, score, length))
        found.append(Finding(numbers.kind, rules, cross_fitted(columns, asked, patients)))
    return found


def find_counts(scan: Scan, sizes: NDArray[np.int64], asked: Question, patients: Sequence[str]) -> Finding | None:
    """The rule of how many instances have one of a type near, where their number tells clearly more than their share,
    on folds of patients that did not choose; None elsewhere. In bags of one size both are the same.
    """
    (shares,) = (kind for kind in scan.kinds if kind.kind == "within")
    counts = shares.values * sizes[:, None]
    said = cross_fitted(counts, asked, patients)
    gain = asked.losses(cross_fitted(shares.values, asked, patients)) - asked.losses(said)
    numbers = {patient: number for number, patient in enumerate(dict.fromkeys(patients))}
    each = np.bincount([numbers[patient] for patient in patients], gain)
    if float(each.sum()) <= CLEARLY * float(np.sqrt(each @ each)):
        return None
    scores = asked.scores(counts)
    best = _ranked(counts, asked, scores)[0]
    first, second, length = shares.types[best]
    value = parting_value(counts[:, best], asked.residuals if scores[best] < 0.5 else -asked.residuals)
    return Finding("within", [Rule("within", first, second, value, float(scores[best]), length)], said)


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

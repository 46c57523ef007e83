"""Numbers of a bag that DAS-MIL can be begun from: how near two types of instances come, and how many lie near others.

Thousands of such numbers are tried; which one counts is chosen on the bags to learn from alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree
from scipy.stats import rankdata

from dasmil.candidates.folds import Fold, patient_weights
from dasmil.candidates.objective import Objective
from dasmil.candidates.ridge import fit_line
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

Array = NDArray[np.float64]
COUNTS = (8, 12, 16, 24)
"""Numbers of k-means types that are tried; the first stand beside the types that stand out."""

LENGTHS = 7
"""Lengths within which instances are counted, from neighbours to a quarter of a usual bag."""
COUNTED = 2
"""Systems of types, the smallest, between which instances are counted; of a number, which says more, all are."""

PENALTY = 1.0
"""Ridge of the regression on one standardised number."""

RuleKind = Literal["near", "within", "count"]


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
    """One or two types of instances and a length.

    near: one of ``first`` and one of ``second`` come nearer than ``length``; within: the share of instances that are of
    ``first`` (None: of any) and have one of another type ``second`` within ``length``; count: their number.
    """

    kind: RuleKind
    first: Type | None
    second: Type
    length: float

    @property
    def types(self) -> list[Type]:
        """Its one or two types; one, too, where instances of a type come near each other."""
        both = [self.first] if self.first is self.second else [self.first, self.second]
        return [one for one in both if one is not None]


@dataclass(frozen=True, eq=False)
class Columns:
    """Numbers of one kind: values [bags, m], and of each its types and its length."""

    kind: RuleKind
    values: NDArray[np.float64]
    types: list[tuple[Type | None, Type, float]]


@dataclass(frozen=True, eq=False)
class Scan:
    """The numbers of all bags, by kind of rule."""

    kinds: dict[RuleKind, Columns]


def scan_bags(bags: Sequence[Bag], directions: Directions, counted: int = COUNTED) -> Scan:
    """bags: with features read in the directions; counted: systems of types between which instances are counted. No
    label is looked at. Distances count between those of neighbours and the extent of a usual bag, so that no length
    lies beyond.
    """
    within, stand = directions.within, len(directions.places)
    own = np.zeros((stand, within), np.float32)
    own[np.arange(stand), np.arange(stand)] = directions.places
    systems = [(find_types(bags, count, within), own if count == COUNTS[0] else own[:0]) for count in COUNTS]
    known = _types(bags, systems, directions)
    lengths, (nearest, extent) = usual_lengths(bags), usual_reach(bags)
    rows: dict[RuleKind, list[NDArray[np.float64]]] = {"near": [], "within": []}
    for bag in bags:
        x, distances, counts = bag.features.numpy(), [], []
        for number, (centres, others) in enumerate(systems):
            own_kinds = type_of(x, centres)
            members = [np.flatnonzero(own_kinds == kind) for kind in range(len(centres))]
            members += [np.flatnonzero(x[:, axis] > directions.limits[axis]) for axis in range(len(others))]
            distances.append(pair_distances(bag, members))
            if number < counted:
                members[: len(centres)] = [_like(x[:, :within], kind) for kind in known[number][: len(centres)]]
                counts.append(shares_within(bag, members, lengths) + 0.5 / len(bag))
        rows["near"].append(np.clip(np.concatenate(distances), nearest, extent))
        rows["within"].append(np.concatenate(counts))
    types: dict[RuleKind, list[tuple[Type | None, Type, float]]] = {
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
    kinds: dict[RuleKind, Columns] = {kind: Columns(kind, np.array(rows[kind]), types[kind]) for kind in types}
    sizes = np.array([len(bag) for bag in bags], dtype=np.float64)[:, None]
    kinds["count"] = Columns("count", kinds["within"].values * sizes, types["within"])
    return Scan(kinds)


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


def usual_reach(bags: Sequence[Bag]) -> tuple[float, float]:
    """The distance of neighbours in a usual bag, and its extent."""
    some = bags[:: max(1, len(bags) // 20)]
    spacing = np.median([float(np.median(_spacing(bag.coords.double().numpy()))) for bag in some])
    extent = np.median([float(np.ptp(bag.coords.numpy(), axis=0).max()) for bag in some])
    return max(float(spacing), 1e-6 * float(extent), 1e-9), max(float(extent), float(spacing), 1e-9)


def usual_lengths(bags: Sequence[Bag], count: int = LENGTHS) -> NDArray[np.float64]:
    """Lengths from one and a half times the distance of neighbours to a quarter of the extent of a usual bag."""
    spacing, extent = usual_reach(bags)
    return np.geomspace(1.5 * spacing, max(extent / 4, 1.5 * spacing), count)


def _spacing(places: NDArray[np.float64]) -> NDArray[np.float64]:
    some = places[np.random.default_rng(0).permutation(len(places))[:500]]
    nearest = KDTree(places).query(some, k=min(2, len(places)))[0]
    return np.asarray(nearest).reshape(len(some), -1)[:, -1]


def best_rule(columns: Columns, objective: Objective, rows: NDArray[np.int64]) -> tuple[Rule, Array]:
    """The number that orders these bags best by what a constant guess leaves unexplained, and its logarithm [bags]."""
    part = objective.part(rows)
    logs = np.log(np.maximum(columns.values, 1e-9))
    left = -part.gradient(np.tile(part.guess(), (len(rows), 1))) @ part.link.T
    left -= left.mean(0)
    ranks = rankdata(logs[rows], axis=0)
    ranks -= ranks.mean(0)
    spread = np.maximum(logs[rows].std(0), 1e-9)
    scores = np.abs(left.T @ ranks).max(0) / np.maximum(np.sqrt(np.square(ranks).sum(0)), 1e-9)
    apart = np.abs(left.T @ logs[rows]).max(0) / spread
    best = int(np.lexsort((-apart, -np.round(scores, 9)))[0])
    first, second, length = columns.types[best]
    if columns.kind == "near":
        leading = int(np.abs(left.T @ ranks[:, best]).argmax())
        sign = np.sign(left[:, leading] @ ranks[:, best])
        length = parting_value(columns.values[rows, best], -sign * left[:, leading])
    return Rule(columns.kind, first, second, length), logs[:, best]


def rule_outputs(
    columns: Columns, objective: Objective, patients: Sequence[str], folds: Sequence[Fold]
) -> tuple[list[Rule], Array]:
    """The best rule of every fold, and out-of-fold outputs [bags, outputs] of a regression on its number."""
    weights = patient_weights(patients)
    rules: list[Rule] = []
    outputs = np.zeros((len(columns.values), objective.outputs))
    for fold in folds:
        rule, logs = best_rule(columns, objective, fold.rest)
        x = ((logs - logs[fold.rest].mean()) / max(logs[fold.rest].std(), 1e-9))[:, None]
        line = fit_line(x[fold.rest], objective.part(fold.rest), weights[fold.rest], PENALTY)
        outputs[fold.held] = line.outputs(x[fold.held], objective)
        rules.append(rule)
    return rules, outputs


def parting_value(values: NDArray[np.float64], small: NDArray[np.float64]) -> float:
    """The value below which most of ``small`` [bags] (which sums to 0) lies; in the middle of the gap.

    Of two classes, ``small`` being their residuals, it is the cut of Youden.
    """
    order = np.argsort(values, kind="stable")
    ordered, own = values[order], np.cumsum(small[order])
    cut = int(own[:-1].argmax()) if len(values) > 1 else 0
    low, high = ordered[cut], ordered[min(cut + 1, len(ordered) - 1)]
    return float(np.sqrt(max(low, 1e-9) * max(high, 1e-9))) if low > 0 else float(high / 2)

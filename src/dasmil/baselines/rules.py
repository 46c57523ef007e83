"""What a single number says of a bag: the share of a type of instances, or how near two types come. A scan of seconds.

Which number it is, training bags say, and how much it is worth, training bags that did not choose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from dasmil.baselines.prototypes import find_types, pair_distances, type_of, type_pairs
from dasmil.baselines.whitening import Directions
from dasmil.types import Bag

COUNTS = (8, 12, 16, 24)
"""Numbers of k-means types that are tried; the first stand beside the types that stand out."""
FOLDS = 5

RuleKind = Literal["share", "near"]


@dataclass(frozen=True, eq=False)
class Rule:
    """One or two types of instances by where they lie in whitened features [within], and where classes part.

    value: the share of the type, or the distance between the two, at which they part; auroc: on the bags scanned.
    """

    kind: RuleKind
    first: NDArray[np.float32]
    second: NDArray[np.float32]
    value: float
    auroc: float

    @property
    def types(self) -> list[NDArray[np.float32]]:
        """The places of its one or two types; one, too, where instances of a type come near each other."""
        alone = self.kind == "share" or np.array_equal(self.first, self.second)
        return [self.first] if alone else [self.first, self.second]


@dataclass(frozen=True, eq=False)
class Finding:
    """The best rules of a kind, and logits [bags] of the best one of other bags, by folds of the bags scanned."""

    kind: RuleKind
    rules: list[Rule]
    logits: NDArray[np.float64]


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


def find_rules(scan: Scan, labels: NDArray[np.int64], patients: Sequence[str], most: int) -> list[Finding]:
    """For shares and for distances the rules that tell class 1 from class 0 best, best first, at most so many.

    Hundreds of numbers are tried: on a hundred bags the best of them reaches an AUROC of about 0.7 by chance alone.
    ``Finding.logits`` tells what is left of that on bags that did not choose.
    """
    zeros = np.zeros(0, np.float32)
    kinds: list[tuple[RuleKind, NDArray[np.float64], list[tuple[NDArray[np.float32], NDArray[np.float32]]]]] = [
        ("share", scan.shares, [(place, zeros) for place in scan.types]),
        ("near", scan.distances, scan.pairs),
    ]
    found = []
    for kind, values, places in kinds:
        columns = np.log(np.maximum(values, 1e-9))
        scores = aurocs(columns, labels == 1)
        rules = []
        for number in _ranked(columns, labels, scores)[:most]:
            first, second = places[number]
            small = labels == int(scores[number] < 0.5)
            score = float(max(scores[number], 1 - scores[number]))
            rules.append(Rule(kind, first, second, parting_value(values[:, number], small), score))
        found.append(Finding(kind, rules, cross_fitted(columns, labels, patients)))
    return found


def cross_fitted(
    columns: NDArray[np.float64], labels: NDArray[np.int64], patients: Sequence[str]
) -> NDArray[np.float64]:
    """Logits [bags] of the best column, each chosen and weighed on the other folds of patients; 0 without folds."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold

    logits = np.zeros(len(labels))
    folds = min(FOLDS, int(np.bincount(labels, minlength=2).min()), len(set(patients)))
    if folds < 2:
        return logits
    for rest, fold in StratifiedGroupKFold(folds, shuffle=True, random_state=0).split(columns, labels, patients):
        if len(np.unique(labels[rest])) < 2:
            continue
        best = _ranked(columns[rest], labels[rest], aurocs(columns[rest], labels[rest] == 1))[0]
        centre, spread = columns[rest, best].mean(), max(columns[rest, best].std(), 1e-9)
        x = ((columns[:, best] - centre) / spread)[:, None]
        logits[fold] = LogisticRegression(class_weight="balanced").fit(x[rest], labels[rest]).decision_function(x[fold])
    return logits


def aurocs(columns: NDArray[np.float64], positive: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The AUROC of every column [bags, m] at once, by ranks."""
    positives = int(positive.sum())
    ranks = rankdata(columns, axis=0)[positive].sum(0)
    return (ranks - positives * (positives + 1) / 2) / max(1, positives * (len(positive) - positives))


def _ranked(columns: NDArray[np.float64], labels: NDArray[np.int64], scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Columns from the best on; where several tell the classes apart alike, the wider gap of their means decides."""
    gap = columns[labels == 1].mean(0) - columns[labels != 1].mean(0)
    apart = np.abs(gap) / np.maximum(columns[labels == 1].std(0) + columns[labels != 1].std(0), 1e-9)
    return np.lexsort((-apart, -np.round(np.abs(scores - 0.5), 9)))


def parting_value(values: NDArray[np.float64], small: NDArray[np.bool_]) -> float:
    """The value below which the bags of ``small``, and above which the others lie best (in the middle of the gap)."""
    order = np.argsort(values, kind="stable")
    ordered, own = values[order], small[order]
    right = np.cumsum(own) / max(1, own.sum()) + 1 - np.cumsum(~own) / max(1, (~own).sum())
    cut = int(right[:-1].argmax()) if len(values) > 1 else 0
    low, high = ordered[cut], ordered[min(cut + 1, len(ordered) - 1)]
    return float(np.sqrt(max(low, 1e-9) * max(high, 1e-9))) if low > 0 else float(high / 2)

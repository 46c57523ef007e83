"""Several models on the same bags: scores, paired differences, and which of them are more than chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.errors import InputError
from dasmil.stats.ranking import auroc, divide
from dasmil.stats.resample import interval, resampled

Array = NDArray[np.float64]
LEVEL = 0.05
RESAMPLES, RESAMPLES_A_PAIR = 2000, 100
"""More where many pairs are compared: the smallest p, times the number of pairs, must stay below LEVEL."""
ROUNDING = 1e-6
"""Smaller differences are those of float32 sums taken in another order, and count as none."""


Figure = Callable[[Array | None], Array]
"""What one run reached, from weights of the bags [draws, n] (None: each counts once) to the metric [draws]."""


@dataclass(frozen=True, eq=False)
class ScoredPart:
    """A fold (or the only part) of the bags, with the figure of every seed.

    truth [n] or [n, columns]: what is known of the bags; strata [n]: resamples keep their numbers of patients.
    """

    truth: NDArray[Any]
    strata: NDArray[np.int64]
    patients: Sequence[str]
    seeds: Sequence[Figure]


def class_part(labels: NDArray[np.int64], patients: Sequence[str], scores: Sequence[Array]) -> ScoredPart:
    """Bags with a class: the AUROC of each seed's scores [n] or [n, classes]."""

    def figure(one: Array) -> Figure:
        return lambda weights: macro_auroc(one, labels, weights)

    return ScoredPart(labels, labels, patients, [figure(one) for one in scores])


@dataclass(frozen=True)
class ModelScore:
    """The metric of a model, mean over folds and seeds, with a 95 % interval; rank: mean over resamples, 1 is best."""

    name: str
    score: float
    low: float
    high: float
    rank: float


@dataclass(frozen=True)
class Gap:
    """The metric of ``first`` minus that of ``second`` with a 95 % interval from paired resamples of patients.

    p: two-sided, from the resamples; p_holm: corrected for the number of comparisons; shown: whether that is below 5 %.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float

    @property
    def shown(self) -> bool:
        return self.p_holm < LEVEL


@dataclass(frozen=True)
class SpaceScore:
    """What a model loses when positions are dealt out anew, or when the instances are only listed in another order."""

    name: str
    coords: Gap
    rows: Gap


@dataclass(frozen=True)
class Compared:
    """Models by the metric, best first, and all pairs of them."""

    bags: int
    patients: int
    folds: int
    seeds: int
    models: Sequence[ModelScore]
    gaps: Sequence[Gap]
    space: Sequence[SpaceScore] = field(default_factory=tuple)
    metric: str = "auroc"

    def gap(self, first: str, second: str) -> Gap:
        """The difference of two models, in this direction."""
        for g in self.gaps:
            if (g.first, g.second) == (first, second):
                return g
            if (g.first, g.second) == (second, first):
                return Gap(first, second, -g.difference, -g.high, -g.low, g.p, g.p_holm)
        raise InputError(f"{first} and {second} were not compared")

    def alike(self) -> list[list[str]]:
        """The largest groups of neighbours in rank among whom no difference is shown."""
        order = [m.name for m in sorted(self.models, key=lambda m: m.rank)]
        groups: list[list[str]] = []
        for start in range(len(order)):
            end = start + 1
            while end < len(order) and not any(self.gap(one, order[end]).shown for one in order[start:end]):
                end += 1
            group = order[start:end]
            if len(group) > 1 and not any(set(group) <= set(known) for known in groups):
                groups.append(group)
        return groups


def compare_scores(
    models: Mapping[str, Sequence[ScoredPart]], *, metric: str = "auroc", resamples: int | None = None, seed: int = 0
) -> Compared:
    """Compare models that scored the same parts; patients are resampled within parts, the same for all models.

    metric: what the figures of the parts are, of which more is better.
    """
    if len(models) < 2:
        raise InputError(f"{len(models)} model was given, expected two or more to compare")
    first = next(iter(models.values()))
    for name, parts in models.items():
        _check_same(name, parts, first)
    exact = {name: float(_mean([_reached(part, None) for part in parts])[0]) for name, parts in models.items()}
    for name, value in exact.items():
        if not np.isfinite(value):
            raise InputError(
                f"{name} has no {metric} on these bags: no part of them has what it needs (two classes, an event "
                "before the last time, or different numbers)"
            )
    order = sorted(models, key=lambda name: -exact[name])
    pairs = list(combinations(order, 2))
    count = max(RESAMPLES, RESAMPLES_A_PAIR * len(pairs)) if resamples is None else resamples
    drawn = _drawn(models, count, seed)
    table = np.stack([drawn[name] for name in order])
    ranks = (table[:, None] < table[None]).sum(1) + ((table[:, None] == table[None]).sum(1) - 1) / 2 + 1
    scored = []
    for i, name in enumerate(order):
        low, high = interval(drawn[name])
        scored.append(ModelScore(name, exact[name], low, high, float(ranks[i].mean())))
    gaps = [gap_of(a, b, exact[a] - exact[b], drawn[a] - drawn[b]) for a, b in pairs]
    corrected = holm([g.p for g in gaps])
    patients = {patient for part in first for patient in part.patients}
    return Compared(
        sum(len(part.strata) for part in first), len(patients), len(first), len(first[0].seeds), scored,
        [Gap(g.first, g.second, g.difference, g.low, g.high, g.p, p) for g, p in zip(gaps, corrected, strict=True)],
        metric=metric,
    )  # fmt: skip


def paired_gap(name: str, before: Sequence[ScoredPart], after: Sequence[ScoredPart], *, seed: int = 0) -> Gap:
    """What a model loses from ``before`` to ``after``, scores of the same bags."""
    found = compare_scores({name: before, f"{name}, changed": after}, seed=seed)
    return found.gap(name, f"{name}, changed")


def gap_of(first: str, second: str, difference: float, draws: Array) -> Gap:
    """p: twice the share of resamples on the wrong side of 0, one added to each side so that none is impossible."""
    draws = np.where(np.abs(draws) < ROUNDING, 0.0, draws)
    difference = 0.0 if abs(difference) < ROUNDING else difference
    kept = draws[np.isfinite(draws)]
    wrong = min(int((kept <= 0).sum()), int((kept >= 0).sum()))
    p = min(1.0, 2 * (wrong + 1) / (len(kept) + 1))
    low, high = interval(draws)
    return Gap(first, second, difference, low, high, p, p)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction for several comparisons."""
    order = sorted(range(len(p)), key=p.__getitem__)
    corrected, highest = [0.0] * len(p), 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p) - place) * p[index]))
        corrected[index] = highest
    return corrected


def macro_auroc(scores: Array, labels: NDArray[np.int64], weights: Array | None) -> Array:
    """[draws]; for more than two classes the mean over one class against the rest."""
    if scores.ndim == 1:
        return auroc(scores, labels == 1, weights)
    return np.mean([auroc(scores[:, c], labels == c, weights) for c in range(scores.shape[1])], axis=0)


def _drawn(models: Mapping[str, Sequence[ScoredPart]], resamples: int, seed: int) -> dict[str, Array]:
    """Every model's score [resamples], all from the same draws, of which only some are in memory at once."""
    found: dict[str, list[Array]] = {name: [] for name in models}
    for number, part in enumerate(next(iter(models.values()))):
        chunks: dict[str, list[Array]] = {name: [] for name in models}
        for weights in resampled(part.strata, part.patients, resamples, seed + number):
            for name, parts in models.items():
                chunks[name].append(_reached(parts[number], weights))
        for name, pieces in chunks.items():
            found[name].append(np.concatenate(pieces))
    return {name: _mean(rows) for name, rows in found.items()}


def _reached(part: ScoredPart, weights: Array | None) -> Array:
    """What a model reached on a part, mean over seeds [draws]."""
    return np.mean([figure(weights) for figure in part.seeds], axis=0)


def _mean(rows: Sequence[Array]) -> Array:
    """Mean over parts [draws]; a part without the metric (of one class, say) does not count."""
    table = np.stack(rows)
    there = np.isfinite(table)
    return divide(np.where(there, table, 0).sum(0), there.sum(0).astype(np.float64))


def _check_same(name: str, parts: Sequence[ScoredPart], first: Sequence[ScoredPart]) -> None:
    same = len(parts) == len(first) and all(
        np.array_equal(a.truth, b.truth, equal_nan=a.truth.dtype.kind == "f") and list(a.patients) == list(b.patients)
        for a, b in zip(parts, first, strict=False)
    )
    if not same:
        raise InputError(f"{name} was scored on other bags or folds than the first model: compare like with like")

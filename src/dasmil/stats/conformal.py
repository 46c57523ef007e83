"""Conformal prediction sets: classes that cannot be ruled out at a stated error rate. The unit is the patient.

The p-value of a class is the share of patients whose own true class fits as badly, the new patient counted as one of
them. A patient's slides share the weight of one patient (hierarchical conformal prediction: Lee, Barber and Willett,
2023), so a slide of a new patient is covered with probability 1 - alpha or more, whatever slides have in common.
Split: scores of bags that the predicting models did not train on. Cross: every fold ranks a new bag among its own
held-out bags (Vovk 2015; Barber et al. 2021); there 1 - 2 alpha is guaranteed and about 1 - alpha is reached.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasmil.errors import DataError, InputError
from dasmil.stats.curves import wilson
from dasmil.stats.resample import patient_numbers

Array = NDArray[np.float64]
EVERYONE = ""
"""The group of a bag where groups are not kept apart."""
SMALLER = 1e-9


@dataclass(frozen=True, eq=False)
class CalibrationScores:
    """Scores of one model (a run, or a fold) on bags that it did not train on.

    score [n]: 1 - probability of the true class; weight [n]: sums to 1 within every patient; label [n], group [n].
    """

    score: Array
    weight: Array
    label: NDArray[np.int64]
    group: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Conformal:
    """What prediction sets are made from. folds: one item of a split run, one per fold of a cross-validation.

    by_class: rank among bags of the same class only, so that every class is covered; by_group: among its own group.
    """

    folds: tuple[CalibrationScores, ...]
    classes: int
    alpha: float
    by_class: bool = False
    by_group: bool = False

    def p_values(self, probabilities: Sequence[ArrayLike], groups: Sequence[str] | None = None) -> Array:
        """[n, classes] from the probabilities of every fold's model, each [n] of class 1 or [n, classes]."""
        if len(probabilities) != len(self.folds):
            raise InputError(f"{len(probabilities)} folds have predicted, the prediction sets are of {len(self.folds)}")
        if self.by_group and groups is None:
            raise InputError("these prediction sets keep groups apart: say the group of every bag")
        tables = [both_classes(p) for p in probabilities]
        n = len(tables[0])
        own = list(groups) if self.by_group and groups is not None else [EVERYONE] * n
        worse, total = np.zeros((n, self.classes)), np.zeros((n, self.classes))
        for fold, table in zip(self.folds, tables, strict=True):
            place = np.array(fold.group) if self.by_group else np.full(len(fold.label), EVERYONE)
            for group in set(own):
                rows = np.array([g == group for g in own])
                for c in range(self.classes):
                    members = (place == group) & ((fold.label == c) if self.by_class else True)
                    score, weight = fold.score[members], fold.weight[members]
                    order = np.argsort(score)
                    above = np.concatenate([np.cumsum(weight[order][::-1])[::-1], [0.0]])
                    at = np.searchsorted(score[order], 1 - table[rows, c] - SMALLER, side="left")
                    worse[rows, c] += above[at]
                    total[rows, c] += weight.sum()
        return (worse + 1) / (total + 1)

    def sets(self, probabilities: Sequence[ArrayLike], groups: Sequence[str] | None = None) -> NDArray[np.bool_]:
        """[n, classes]: the classes whose p-value is above alpha."""
        return self.p_values(probabilities, groups) > self.alpha

    def fewest(self) -> float:
        """Patients in the smallest group that is ranked within; 1 / alpha - 1 or more are needed to rule out any."""
        found: dict[tuple[int, str], float] = {}
        for fold in self.folds:
            for label, group, weight in zip(fold.label, fold.group, fold.weight):
                key = (int(label) if self.by_class else 0, group if self.by_group else EVERYONE)
                found[key] = found.get(key, 0.0) + float(weight)
        whole = self.classes if self.by_class else 1
        return min(found.values()) if len({label for label, _ in found}) == whole else 0.0

    def as_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads."""
        return {
            "alpha": self.alpha, "classes": self.classes, "by_class": self.by_class, "by_group": self.by_group,
            "folds": [
                {"score": f.score.tolist(), "weight": f.weight.tolist(), "label": f.label.tolist(),
                 "group": list(f.group)}
                for f in self.folds
            ],
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Conformal:
        """What `as_json` wrote; anything else is one error."""
        try:
            folds = tuple(
                CalibrationScores(
                    np.asarray(f["score"], dtype=np.float64), np.asarray(f["weight"], dtype=np.float64),
                    np.asarray(f["label"], dtype=np.int64), tuple(map(str, f["group"])),
                )
                for f in value["folds"]
            )  # fmt: skip
            return cls(folds, int(value["classes"]), float(value["alpha"]), bool(value["by_class"]),
                       bool(value["by_group"]))  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the prediction sets of this run are not readable ({error}): fit them again") from None


def fit_conformal(
    folds: Sequence[tuple[ArrayLike, ArrayLike, Sequence[str]]],
    *,
    coverage: float = 0.9,
    by_class: bool = False,
    groups: Sequence[Sequence[str]] | None = None,
) -> Conformal:
    """Prediction sets from held-out bags: (labels [n], probabilities, patients [n]) of the run, or of every fold.

    groups: of every bag of each fold, to be kept apart (Mondrian): then each group has the coverage.
    """
    if not 0.5 <= coverage < 1:
        raise InputError(f"the coverage is {coverage:g}, expected a share from 0.5 to below 1, for example 0.9")
    parts, classes = [], 0
    for number, (labels, probabilities, patients) in enumerate(folds):
        y, table = np.asarray(labels, dtype=np.int64), both_classes(probabilities)
        if len(y) != len(table) or len(y) != len(patients) or len(y) == 0:
            raise InputError(f"{len(y)} labels and {len(table)} predictions: expected one of each for every bag")
        classes = table.shape[1]
        group = tuple(groups[number]) if groups is not None else (EVERYONE,) * len(y)
        owner = patient_numbers([f"{p}\0{g}\0{c if by_class else ''}" for p, g, c in zip(patients, group, y)])
        weight = 1 / np.bincount(owner)[owner]
        parts.append(CalibrationScores(1 - table[np.arange(len(y)), y], weight, y, group))
    found = Conformal(tuple(parts), classes, 1 - coverage, by_class, groups is not None)
    needed = math.ceil(1 / found.alpha - 1 - 1e-9)
    if found.fewest() < needed - 1e-9:
        where = " of a class" * by_class + " in a group" * (groups is not None)
        raise InputError(
            f"{found.fewest():.0f} patients{where} are too few for prediction sets of coverage {coverage:g}, expected "
            f"{needed} or more: ask for a lower coverage or train with --folds"
        )
    return found


@dataclass(frozen=True)
class Coverage:
    """How often sets hold the true class, by patient, with Wilson's interval; single: sets of one class; empty."""

    patients: int
    covered: float
    low: float
    high: float
    size: float
    single: float
    empty: float

    def as_json(self) -> dict[str, Any]:
        """A JSON object."""
        return dict(vars(self))


def coverage_of(sets: NDArray[np.bool_], labels: ArrayLike, patients: Sequence[str]) -> Coverage:
    """Empirical coverage and size of sets [n, classes]; every patient counts once, with the mean of its bags."""
    y, owner = np.asarray(labels, dtype=np.int64), patient_numbers(patients)
    weight = 1 / np.bincount(owner)[owner]
    count, size = len(np.unique(owner)), sets.sum(1)

    def mean(values: NDArray[Any]) -> float:
        return float((weight * values).sum() / count)

    covered = mean(sets[np.arange(len(y)), y])
    low, high = wilson(covered, count)
    return Coverage(count, covered, low, high, mean(size), mean(size == 1), mean(size == 0))


def cross_coverage(conformal: Conformal, folds: Sequence[tuple[ArrayLike, ArrayLike, Sequence[str]]]) -> Coverage:
    """Coverage on the folds' own bags: of each fold by sets that were made from the bags of the other folds."""
    if len(conformal.folds) < 2:
        raise InputError("one set of bags cannot judge prediction sets that were made from it: give other bags")
    sets, labels, owners = [], [], []
    for number, (y, probabilities, patients) in enumerate(folds):
        others = [fold for k, fold in enumerate(conformal.folds) if k != number]
        pooled = CalibrationScores(
            np.concatenate([f.score for f in others]), np.concatenate([f.weight for f in others]),
            np.concatenate([f.label for f in others]), tuple(g for f in others for g in f.group),
        )  # fmt: skip
        alone = replace(conformal, folds=(pooled,))
        sets.append(alone.sets([probabilities], conformal.folds[number].group))
        labels.append(np.asarray(y))
        owners += list(patients)
    return coverage_of(np.concatenate(sets), np.concatenate(labels), owners)


def both_classes(probabilities: ArrayLike) -> Array:
    """[n, classes]; of class 1 alone that of class 0 is put beside it."""
    p = np.asarray(probabilities, dtype=np.float64)
    return np.stack([1 - p, p], axis=1) if p.ndim == 1 else p

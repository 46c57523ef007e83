"""The outcome of every patient: what is fitted to it, how patients are dealt into folds, and how predictions score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dasmil.errors import DataError
from dasmil.space.sections import Array
from dasmil.stats import FollowUp, auroc, harrell, numeric_scores

Kind = Literal["classes", "survival", "number"]
FEWEST = 6
"""Patients of a class (or with the event, or in all) without which no outcome is tested."""
METRICS = {"classes": "AUROC", "survival": "C-index", "number": "R²"}


@dataclass(frozen=True, eq=False)
class Outcome:
    """values [patients, 1]: a class number or a number; survival [patients, 2]: time and event. name: of the column."""

    kind: Kind
    values: Array
    classes: tuple[str, ...] = ()
    name: str = "outcome"

    def __len__(self) -> int:
        return len(self.values)

    @property
    def metric(self) -> str:
        return METRICS[self.kind]

    @property
    def directions(self) -> tuple[str, ...]:
        """What each column of ``targets`` counts, in words."""
        if self.kind == "survival":
            return ("higher risk",)
        if self.kind == "number":
            return (f"higher {self.name}",)
        return self.classes[1:] if len(self.classes) == 2 else self.classes

    @property
    def strata(self) -> NDArray[np.int64]:
        """A number for every patient by which folds and resamples are balanced: class, event, above the median."""
        if self.kind == "survival":
            return self.values[:, 1].astype(np.int64)
        if self.kind == "number":
            return (self.values[:, 0] > np.median(self.values[:, 0])).astype(np.int64)
        return self.values[:, 0].astype(np.int64)

    def targets(self, rows: NDArray[np.int64] | None = None) -> Array:
        """What is fitted by least squares [rows, targets]: membership of a class, a number, or martingale residuals.

        Those are events minus the events that the rows' own cumulative hazard expects: the direction in which a Cox
        regression moves first.
        """
        values = self.values if rows is None else self.values[rows]
        if self.kind == "survival":
            return martingale_residuals(values[:, 0], values[:, 1])[:, None]
        if self.kind == "number":
            return values
        codes = range(1, 2) if len(self.classes) == 2 else range(len(self.classes))
        return np.stack([values[:, 0] == code for code in codes], axis=1).astype(np.float64)

    def score(self, predicted: Array, weights: Array | None = None) -> Array:
        """The metric of predictions [patients, targets] under each row of weights [draws, patients]."""
        if self.kind == "survival":
            return harrell(FollowUp(self.values[:, 0], self.values[:, 1] == 1), predicted[:, 0], weights)
        if self.kind == "number":
            return numeric_scores(self.values[:, 0], predicted[:, 0], weights)["r2"]
        codes = range(1, 2) if len(self.classes) == 2 else range(len(self.classes))
        found = [auroc(predicted[:, k], self.values[:, 0] == code, weights) for k, code in enumerate(codes)]
        return np.mean(found, axis=0)

    def take(self, rows: NDArray[np.int64]) -> Outcome:
        """The outcome of some patients, or of patients drawn several times."""
        return Outcome(self.kind, self.values[rows], self.classes, self.name)

    def too_few(self) -> str | None:
        """Why there are too few patients to test the outcome, or None."""
        if self.kind == "classes":
            counts = np.bincount(self.strata, minlength=len(self.classes))
            fewest = int(counts.argmin())
            if len(self.classes) < 2:
                return f"all {len(self)} patients are of one class"
            if counts[fewest] < FEWEST:
                return f"class {self.classes[fewest]!r} has {counts[fewest]} patients, expected {FEWEST} or more"
        elif self.kind == "survival" and self.values[:, 1].sum() < FEWEST:
            return f"{int(self.values[:, 1].sum())} patients had the event, expected {FEWEST} or more"
        elif len(self) < 2 * FEWEST:
            return f"there are {len(self)} patients, expected {2 * FEWEST} or more"
        if self.kind == "number" and np.ptp(self.values[:, 0]) == 0:
            return f"{self.name} is {self.values[0, 0]:g} in all patients"
        return None


def martingale_residuals(times: Array, events: Array) -> Array:
    """Events minus the cumulative hazard (Nelson and Aalen) at the end of each patient's follow-up."""
    order = np.argsort(times, kind="stable")
    t, d = times[order], events[order]
    first = np.searchsorted(t, t, side="left")
    last = np.searchsorted(t, t, side="right")
    hazard = np.cumsum(d / (len(t) - first))[last - 1]
    found = np.empty(len(t))
    found[order] = d - hazard
    return found


def outcome_of_patients(
    kind: Kind, values: Array, owners: Sequence[str], patients: Sequence[str], classes: tuple[str, ...], name: str
) -> Outcome:
    """One row for each patient from one for each bag; a patient whose bags differ is an error."""
    rows: dict[str, Array] = {}
    for owner, value in zip(owners, values, strict=True):
        if not np.array_equal(rows.setdefault(owner, value), value):
            raise DataError(
                f"patient {owner!r} has bags with different outcomes ({rows[owner][0]:g} and {value[0]:g}), and the "
                "study compares patients: give each patient one outcome, or name as --patient-column what has one"
            )
    return Outcome(kind, np.array([rows[patient] for patient in patients]), classes, name)

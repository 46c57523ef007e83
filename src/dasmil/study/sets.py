"""Prediction sets of a run: made from bags that its models were not trained on, judged on other patients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.runs import Predictions, Run, held_out, patient_folds
from dasmil.stats.conformal import Conformal, Coverage, cross_coverage, fit_conformal

Array = NDArray[np.float64]
CLASS = "class"
"""Sets by the true class, in place of a column."""
UNKNOWN = "not known"


@dataclass(frozen=True, eq=False)
class RunSets:
    """Prediction sets of a run, and how often they held the true class of its own bags (of other patients)."""

    conformal: Conformal
    own: Coverage

    def of(self, parts: Sequence[Array], groups: Sequence[str] | None = None) -> NDArray[np.bool_]:
        """[n, classes] from the probabilities of every fold's models; of a plain run there is one part."""
        every = parts if len(parts) == len(self.conformal.folds) else list(parts) * len(self.conformal.folds)
        return self.conformal.sets(every, groups)


def run_sets_of(
    run: Run, coverage: float, *, by: str | None = None, groups: Mapping[str, str] | None = None
) -> RunSets:
    """Sets at a coverage; by: "class", or the column whose groups (of every bag, by name) are kept apart (Mondrian)."""
    parts = [(p.labels, p.probabilities, p.patients, p.bag_ids) for p in held_out(run)]
    if len(parts) == 1:  # out-of-fold predictions of one run: other patients judge its sets
        parts = _cut(held_out(run)[0])
    folds = [(y, p, patients) for y, p, patients, _ in parts]
    own = None
    if by is not None and by != CLASS:
        assert groups is not None
        own = [[groups.get(bag, UNKNOWN) for bag in bags] for *_, bags in parts]
    conformal = fit_conformal(folds, coverage=coverage, by_class=by == CLASS, groups=own)
    return RunSets(conformal, cross_coverage(conformal, folds))


def _cut(found: Predictions) -> list[Any]:
    fold = patient_folds(found.patients)
    return [
        (found.labels[rows], found.probabilities[rows], [found.patients[i] for i in rows],
         [found.bag_ids[i] for i in rows])
        for rows in (np.flatnonzero(fold == k) for k in np.unique(fold))
    ]  # fmt: skip


def set_words(sets: NDArray[np.bool_], names: Sequence[str]) -> list[str]:
    """The classes of every set, in words: "normal or tumour"; an empty set fits no class."""
    return [" or ".join(n for n, kept in zip(names, row, strict=True) if kept) or "none" for row in sets]


def set_coverage_text(found: Coverage, wanted: float, where: str) -> str:
    """How often sets held the true class, in one sentence; where: of whose bags."""
    return (
        f"Prediction sets of {wanted:.0%} held the true class for {found.covered:.1%} of {found.patients} patients "
        f"{where} (95 % interval {found.low:.1%} to {found.high:.1%}); {found.single:.0%} of sets name one class."
    )

"""Predictions of a run for bags that the predicting models were not trained on, and what is fitted on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.errors import InputError
from dasmil.files import finite, write_json
from dasmil.runs import layout
from dasmil.runs.predictions import Predictions
from dasmil.runs.records import json_file
from dasmil.runs.run import Run
from dasmil.stats.recalibrate import Recalibration, cross_fitted, fit_recalibration

Array = NDArray[np.float64]
FOLDS = 5


@dataclass(frozen=True, eq=False)
class LabelledSet:
    """Labelled bags of a set with the mean probability of the seeds (and, of folds, of the models of their fold).

    probabilities: [n] of class 1, or [n, classes]; thresholds [n]: where a bag becomes positive; fold [n].
    """

    bag_ids: list[str]
    labels: NDArray[np.int64]
    probabilities: Array
    patients: list[str]
    thresholds: Array
    fold: NDArray[np.int64]

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The class of every bag at its threshold, or the most probable."""
        p = self.probabilities
        return (p >= self.thresholds).astype(np.int64) if p.ndim == 1 else p.argmax(1)


def labelled_set(run: Run, split: str) -> LabelledSet | None:
    """The labelled bags of a set of a run; None where it has none."""
    parts = [
        (found, part.threshold, number)
        for number, part in enumerate(run.parts)
        if split in part.summary["splits"] and (found := part.ensemble(split)) is not None
    ]
    known = [(found, found.labels >= 0, cut, number) for found, cut, number in parts]
    if not any(rows.any() for _, rows, _, _ in known):
        return None
    return LabelledSet(
        [bag for found, rows, _, _ in known for bag, kept in zip(found.bag_ids, rows, strict=True) if kept],
        np.concatenate([found.labels[rows] for found, rows, _, _ in known]),
        np.concatenate([found.probabilities[rows] for found, rows, _, _ in known]),
        [who for found, rows, _, _ in known for who, kept in zip(found.patients, rows, strict=True) if kept],
        np.concatenate([np.full(int(rows.sum()), cut) for _, rows, cut, _ in known]),
        np.concatenate([np.full(int(rows.sum()), number) for _, rows, _, number in known]),
    )


def held_out_set(run: Run) -> str:
    """The set whose bags the predicting models were not trained on: of folds their own test bags, else "val"."""
    name = "test" if run.folds else "val"
    if run.task is not None:
        raise InputError(f"this needs the probability of a class, and the run has the task {run.task.kind}")
    if not all(name in part.summary["splits"] for part in run.parts):
        raise InputError(
            f"{run.path} has no predictions of bags that it was not trained on (set {name!r}): train with validation "
            "bags, or with --folds"
        )
    return name


def held_out(run: Run) -> list[Predictions]:
    """What every fold (or the plain run) says about the labelled bags that it was not trained on."""
    name = held_out_set(run)
    found = [part.ensemble(name) for part in run.parts]
    return [_known(one) for one in found if one is not None and (one.labels >= 0).any()]


def _known(found: Predictions) -> Predictions:
    rows = np.flatnonzero(found.labels >= 0)
    return replace(
        found, bag_ids=[found.bag_ids[i] for i in rows], labels=found.labels[rows], logits=found.logits[rows],
        probabilities=found.probabilities[rows], predictions=found.predictions[rows],
        patient_ids=[found.patient_ids[i] for i in rows],
    )  # fmt: skip


def recalibration_of(run: Run, method: str | None = None) -> Recalibration | None:
    """The map to apply: None for method "none"; the one saved with the run without a method; else fitted here."""
    if method == "none":
        return None
    if method is not None:
        whole = Predictions.joined(held_out(run))
        return fit_recalibration(whole.labels, whole.probabilities, method, bag_ids=whole.bag_ids)
    if not (run.path / layout.RECALIBRATION).is_file():
        return None
    return Recalibration.from_json(json_file(run.path, layout.RECALIBRATION))


def save_recalibration(run: Run, method: str) -> None:
    """Fit a map on bags that did not train the models and keep it with the run; "none" takes it away."""
    found = recalibration_of(run, method)
    if found is None:
        (run.path / layout.RECALIBRATION).unlink(missing_ok=True)
    else:
        write_json(run.path / layout.RECALIBRATION, found.as_json())


def recalibrated(run: Run, split: str, known: LabelledSet) -> tuple[Array, str] | None:
    """Probabilities of a set by the run's map, and on which bags it was fitted; None without a map.

    Bags that the run's map was fitted on get those of maps fitted on the other folds, or on other patients.
    """
    found = recalibration_of(run)
    if found is None:
        return None
    if found.fitted_on.isdisjoint(known.bag_ids):
        return found(known.probabilities), f"fitted on the {held_out_set(run)} bags"
    if run.folds:
        return cross_fitted(known.labels, known.probabilities, known.fold, found.method), "fitted on the other folds"
    owner = patient_folds(known.patients)
    return cross_fitted(known.labels, known.probabilities, owner, found.method), "fitted on other patients"


def patient_folds(patients: Sequence[str], folds: int = FOLDS, seed: int = 0) -> NDArray[np.int64]:
    """A fold for every bag [n], drawn by patient."""
    names = list(dict.fromkeys(patients))
    drawn = np.random.default_rng(seed).permutation(len(names)) % folds
    place = dict(zip(names, drawn.tolist(), strict=True))
    return np.array([place[name] for name in patients], dtype=np.int64)


def read_clinical(run: Path) -> dict[str, Any]:
    """What was stated about the use of a run (prevalence, missed_cost), and its subgroups; empty without."""
    return json_file(run, layout.CLINICAL) if (run / layout.CLINICAL).is_file() else {}


def write_clinical(run: Path, record: Mapping[str, Any]) -> None:
    """Put these entries beside those that are there."""
    write_json(run / layout.CLINICAL, finite({**read_clinical(run), **record}))

"""predictions.csv and metrics.csv of a seed: what it says about every bag, and how its training went."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dasmil.files import read_csv, write_csv
from dasmil.runs.answers import Answers
from dasmil.runs.schema import broken

if TYPE_CHECKING:
    from dasmil.tasks import ClassTarget, Task

Array = NDArray[np.float64]

_HISTORY = (
    "epoch", "lr", "train_loss", "train_balanced_accuracy", "val_loss", "val_auroc", "val_balanced_accuracy", "seconds",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Predictions:
    """What one seed says about a split: bag_ids, labels [n] (-1: none), logits and probabilities [n] or [n, classes].

    predictions [n]: the class at the run's threshold (in older files at 0.5), or the most probable; patient_ids [n]:
    None where the bag has none.
    """

    bag_ids: list[str]
    labels: NDArray[np.int64]
    logits: Array
    probabilities: Array
    predictions: NDArray[np.int64]
    patient_ids: list[str | None]

    @property
    def patients(self) -> list[str]:
        """The patient of every bag; a bag without one is its own."""
        return [patient or bag_id for patient, bag_id in zip(self.patient_ids, self.bag_ids)]

    def answers(self) -> Answers:
        """The same as true values and outputs of the model."""
        values = np.where(self.labels < 0, np.nan, self.labels)[:, None]
        return Answers(self.bag_ids, values, self.logits.reshape(len(values), -1), self.patient_ids)

    @staticmethod
    def joined(parts: Sequence[Predictions]) -> Predictions:
        """The bags of several folds together."""
        return Predictions(
            [bag for part in parts for bag in part.bag_ids],
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.logits for part in parts]),
            np.concatenate([part.probabilities for part in parts]),
            np.concatenate([part.predictions for part in parts]),
            [patient for part in parts for patient in part.patient_ids],
        )


def read_predictions(path: Path) -> dict[str, Predictions]:
    """The predictions of a file by split, in its order."""
    table = _table(path)
    classes = [c for c in table if re.fullmatch(r"logit_\d+", c)]
    missing = {"bag_id", "split", "label", "prediction"} - set(table)
    missing |= set() if classes else {"probability"} - set(table)
    if missing:
        raise broken(path, f"it lacks the columns {', '.join(sorted(missing))}")
    try:
        labels = np.array([int(float(v)) if v else -1 for v in table["label"]], dtype=np.int64)
        guesses = np.array([int(float(v)) for v in table["prediction"]], dtype=np.int64)
        logits, probabilities = _values(table, len(classes))
    except (ValueError, OverflowError) as error:
        raise broken(path, f"a value is not a number ({error})") from None
    patients = [patient or None for patient in table.get("patient_id", [""] * len(labels))]  # older files lack it
    splits = np.array(table["split"])
    found: dict[str, Predictions] = {}
    for split in dict.fromkeys(table["split"]):
        rows = np.flatnonzero(splits == split)
        found[split] = Predictions(
            [table["bag_id"][i] for i in rows], labels[rows], logits[rows], probabilities[rows], guesses[rows],
            [patients[i] for i in rows],
        )  # fmt: skip
    return found


def _values(table: Mapping[str, list[str]], classes: int) -> tuple[Array, Array]:
    """Logits and probabilities [n], or [n, classes]."""
    if not classes:
        probabilities = np.array([float(v) for v in table["probability"]])
        logits = [float(v) for v in table["logit"]] if "logit" in table else np.full(len(probabilities), np.nan)
        return np.asarray(logits, dtype=np.float64), probabilities
    logits = np.array([[float(v) for v in table[f"logit_{c}"]] for c in range(classes)]).reshape(classes, -1).T
    if f"probability_{classes - 1}" in table:
        columns = [[float(v) for v in table[f"probability_{c}"]] for c in range(classes)]
        return logits, np.array(columns).reshape(classes, -1).T
    shifted = np.exp(logits - logits.max(1, keepdims=True)) if len(logits) else logits
    return logits, shifted / shifted.sum(1, keepdims=True)


def stored_rows(path: Path, splits: Container[str]) -> list[dict[str, Any]]:
    """The rows of these splits as they are in the file; none where there is no file."""
    if not path.exists():
        return []
    rows = read_csv(path)
    if rows and "split" not in rows[0]:
        raise broken(path, "it lacks the column split")
    return [row for row in rows if row["split"] in splits]


def prediction_rows(
    task: Task,
    split: str,
    bag_ids: Sequence[str],
    patient_ids: Sequence[str | None],
    values: Array,
    outputs: Array,
) -> list[dict[str, Any]]:
    """One row a bag of what a model predicts: bag_id, split, the true values, outputs, what they mean, patient_id.

    Of classes: label, logit (or one per class), probability, prediction.
    """
    columns = _class_columns(task.labels, values, outputs) if task.labels else _task_columns(task, values, outputs)
    return [
        {"bag_id": bag_id, "split": split, **{name: column[i] for name, column in columns.items()}, "patient_id": owner}
        for i, (bag_id, owner) in enumerate(zip(bag_ids, patient_ids, strict=True))
    ]


def _class_columns(target: ClassTarget, values: Array, outputs: Array) -> dict[str, list[Any]]:
    said = target.said(outputs)
    p = target.probabilities(said)
    columns: dict[str, list[Any]] = {"label": [int(v) for v in values[:, 0]]}
    if target.outputs == 1:
        columns |= {"logit": outputs[:, 0].tolist(), "probability": p.tolist()}
    else:
        columns |= {f"logit_{c}": column.tolist() for c, column in enumerate(outputs.T)}
        columns |= {f"probability_{c}": column.tolist() for c, column in enumerate(p.T)}
        columns["probability"] = p.max(1).tolist()
    return {**columns, "prediction": said[target.name].astype(int).tolist()}


def _task_columns(task: Task, values: Array, outputs: Array) -> dict[str, list[Any]]:
    known = {
        f"true_{c}": [v if np.isfinite(v) else "" for v in values[:, k].tolist()] for k, c in enumerate(task.columns)
    }
    given = {f"output_{k}": column.tolist() for k, column in enumerate(outputs.T)}
    return {**known, **given, **{name: found.tolist() for name, found in task.said(outputs).items()}}


def write_predictions(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write one row a bag; files of older versions have no patient_id: their rows leave it empty."""
    write_csv(path, rows, dict.fromkeys(name for row in rows for name in row))


def read_history(path: Path) -> dict[str, Array]:
    """Every column of metrics.csv [epochs]; what is not a number is NaN."""
    columns = {name: np.array([_number(value) for value in values]) for name, values in _table(path).items()}
    if "epoch" not in columns:
        raise broken(path, "it has no column 'epoch'")
    return columns


def write_history(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write one row an epoch."""
    write_csv(path, rows, [*_HISTORY, *(name for name in rows[0] if name not in _HISTORY)])


def _table(path: Path) -> dict[str, list[str]]:
    import csv

    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except FileNotFoundError:
        raise broken(path.parent, f"the file {path.name} is missing") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise broken(path, f"it cannot be read ({error})") from None
    if not rows:
        raise broken(path, "it is empty")
    head, *body = rows
    for number, row in enumerate(body, start=2):
        if len(row) != len(head):
            raise broken(path, f"line {number} has {len(row)} values, expected {len(head)}")
    return {name: [row[i] for row in body] for i, name in enumerate(head)}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")

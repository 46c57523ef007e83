"""predictions.csv of a seed whose task is no class: true values, outputs of the model, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dasmil.files import read_csv
from dasmil.runs.schema import broken

if TYPE_CHECKING:
    from dasmil.tasks import Task

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Answers:
    """What one seed says about a split: values [n, columns] (NaN: missing), outputs [n, outputs] of its model."""

    bag_ids: list[str]
    values: Array
    outputs: Array
    patient_ids: list[str | None]

    @property
    def patients(self) -> list[str]:
        """The patient of every bag; a bag without one is its own."""
        return [patient or bag_id for patient, bag_id in zip(self.patient_ids, self.bag_ids)]

    @staticmethod
    def joined(parts: Sequence[Answers]) -> Answers:
        """The bags of several folds together."""
        return Answers(
            [bag for part in parts for bag in part.bag_ids],
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.outputs for part in parts]),
            [patient for part in parts for patient in part.patient_ids],
        )


def agreeing(task: Task | None, split: str, files: Mapping[Path, Mapping[str, Answers]]) -> list[Answers]:
    """What the seeds say about a split, if each says what the task asks, and all of the same bags."""
    found = {path: answered[split] for path, answered in files.items() if split in answered}
    for path, part in found.items():
        widths = part.values.shape[1], part.outputs.shape[1]
        if task is not None and widths != (len(task.columns), task.outputs):
            raise broken(path, f"it has {widths[0]} true values and {widths[1]} outputs, which is not what was asked")
        if part.bag_ids != next(iter(found.values())).bag_ids:
            raise broken(path, f"its bags of the split {split!r} are not those of other seeds")
    return list(found.values())


def read_answers(path: Path) -> dict[str, Answers]:
    """What a file says by split, in its order."""
    try:
        rows = read_csv(path)
    except FileNotFoundError:
        raise broken(path.parent, f"the file {path.name} is missing") from None
    if not rows or "split" not in rows[0] or "bag_id" not in rows[0]:
        raise broken(path, "it lacks the columns bag_id and split")
    true = [name for name in rows[0] if name.startswith("true_")]
    out = [name for name in rows[0] if re.fullmatch(r"output_\d+", name)]
    if not true or not out:
        raise broken(path, "it lacks true values or outputs of the model")
    found: dict[str, Answers] = {}
    for split in dict.fromkeys(row["split"] for row in rows):
        own = [row for row in rows if row["split"] == split]
        try:
            values = np.array([[float(row[name]) if row[name] else np.nan for name in true] for row in own])
            outputs = np.array([[float(row[name]) for name in out] for row in own])
        except ValueError as error:
            raise broken(path, f"a value is not a number ({error})") from None
        found[split] = Answers(
            [row["bag_id"] for row in own], values, outputs, [row.get("patient_id") or None for row in own]
        )
    return found

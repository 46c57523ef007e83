"""A run directory, read and checked: what a report is made of."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.errors import DataError

Array = NDArray[np.float64]

SPLIT_ORDER = ("test-large", "test", "out-of-fold", "val", "train")
"""The split whose result stands on top of a page is the first of these that was scored."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """What one seed says about a split: bag_ids, labels [n], probabilities [n] or [n, classes], predictions [n].

    patients [n]: a bag without one is its own patient.
    """

    bag_ids: list[str]
    labels: NDArray[np.int64]
    probabilities: Array
    predictions: NDArray[np.int64]
    patients: list[str]


@dataclass(frozen=True, eq=False)
class Seed:
    """One trained run: its curves (column -> [epochs]), its predictions (split -> ...) and how it ended."""

    path: Path
    number: int
    metrics: dict[str, Array]
    predictions: dict[str, Predictions]
    status: dict[str, Any]

    @property
    def stuck(self) -> bool:
        return self.status.get("fitted") is False

    @property
    def distances(self) -> list[dict[str, Any]]:
        """Rows of learned distances: layer, head, theta, beta, midpoint, width, unit; empty without."""
        return self.status.get("learned_distances") or []


@dataclass(frozen=True, eq=False)
class Run:
    """One model on one data set, with all its seeds; the runs of a cross-validation are in `folds`."""

    path: Path
    config: dict[str, Any]
    data: dict[str, Any]
    versions: dict[str, Any]
    summary: dict[str, Any]
    seeds: list[Seed]
    folds: list[Run] = field(default_factory=list)

    @property
    def model(self) -> str:
        return str(self.config["model"]["name"])

    @property
    def options(self) -> dict[str, Any]:
        """The resolved options of the model."""
        return self.config["model"].get("options") or {}

    @property
    def dataset(self) -> str:
        """What the bags are: a built-in data set, or the folder they came from."""
        data = self.config["data"]
        return str(data.get("name") or data.get("bags") or "own bags")

    @property
    def threshold(self) -> float:
        """Where the mean probability of the seeds becomes a positive prediction (of a cross-validation: per fold)."""
        found = self.summary.get("threshold", 0.5)
        found = found.get("ensemble", 0.5) if isinstance(found, dict) else found
        return float(found) if isinstance(found, (int, float)) else 0.5

    @property
    def classes(self) -> int:
        return int(self.options.get("n_classes") or 2)

    @property
    def class_names(self) -> list[str]:
        """Names from the data where they are known, else "negative" and "positive", or numbers."""
        names = self.config["data"].get("classes")
        if isinstance(names, list) and len(names) == self.classes:
            return [str(name) for name in names]
        return ["negative", "positive"] if self.classes == 2 else [str(c) for c in range(self.classes)]

    @property
    def splits(self) -> list[str]:
        """Scored splits, the most telling first; those of other names (a further cohort) before validation."""
        found = list(self.summary["splits"])
        rank = {name: place for place, name in enumerate(SPLIT_ORDER)}
        return sorted(found, key=lambda name: (rank.get(name, 2.5), found.index(name)))

    @property
    def all_seeds(self) -> list[Seed]:
        """The seeds of this run, or of all its folds."""
        return self.seeds or [seed for fold in self.folds for seed in fold.seeds]

    def per_seed(self, split: str) -> list[Predictions]:
        """Predictions for a split, one item per seed; of a cross-validation, the folds' bags put together."""
        if self.seeds:
            return [seed.predictions[split] for seed in self.seeds if split in seed.predictions]
        return [_joined(parts) for parts in zip(*(fold.per_seed(split) for fold in self.folds))]

    def ensemble(self, split: str) -> Predictions | None:
        """The mean probability of the seeds, and the class at the chosen threshold; each fold has its own."""
        if not self.seeds:
            parts = [part for fold in self.folds if (part := fold.ensemble(split))]
            return _joined(parts) if parts else None
        parts = self.per_seed(split)
        if not parts:
            return None
        mean = np.mean([part.probabilities for part in parts], axis=0)
        classes = (mean >= self.threshold).astype(np.int64) if mean.ndim == 1 else mean.argmax(1).astype(np.int64)
        return Predictions(parts[0].bag_ids, parts[0].labels, mean, classes, parts[0].patients)


def read_run(path: str | Path) -> Run:
    """Read a run directory; whatever is missing or broken gives one error that names the file."""
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; expected a run directory, as `dasmil train --out` writes it")
    fold_folders = _numbered(folder, "fold")
    if fold_folders and not (folder / "config.json").exists():  # a cross-validation keeps everything in its folds
        folds = [read_run(fold) for fold in fold_folders]
        first = folds[0]
        return Run(folder, first.config, first.data, first.versions, _summary(folder), [], folds)
    config = _json(folder, "config.json")
    for section, name in (("model", "name"), ("training", None), ("data", None)):
        part = config.get(section)
        if not isinstance(part, dict) or (name and name not in part):
            raise _broken(folder / "config.json", f"it has no section {section!r} that says what was run")
    summary = _summary(folder)
    seeds = [_read_seed(seed) for seed in _numbered(folder, "seed")]
    if not seeds:
        raise _broken(folder, "it holds no seed-K folder")
    return Run(folder, config, _json(folder, "data.json"), _json(folder, "versions.json"), summary, seeds)


def _summary(folder: Path) -> dict[str, Any]:
    summary = _json(folder, "summary.json")
    splits = summary.get("splits")
    if not isinstance(splits, dict) or not splits or not all({"n", "mean"} <= set(part) for part in splits.values()):
        raise _broken(folder / "summary.json", "it has no scored splits")
    return summary


def _read_seed(folder: Path) -> Seed:
    number = int(folder.name.rpartition("-")[2])
    metrics = _table(folder / "metrics.csv")
    columns = {name: np.array([_number(value) for value in values]) for name, values in metrics.items()}
    if "epoch" not in columns:
        raise _broken(folder / "metrics.csv", "it has no column 'epoch'")
    return Seed(folder, number, columns, _read_predictions(folder / "predictions.csv"), _json(folder, "status.json"))


def _read_predictions(path: Path) -> dict[str, Predictions]:
    table = _table(path)
    missing = {"bag_id", "split", "label", "prediction"} - set(table)
    logits = sorted((c for c in table if re.fullmatch(r"logit_\d+", c)), key=lambda c: int(c[6:]))
    if not logits and "probability" not in table:
        missing.add("probability")
    if missing:
        raise _broken(path, f"it lacks the columns {', '.join(sorted(missing))}")
    try:
        if logits:
            raw = np.array([[float(v) for v in table[c]] for c in logits], dtype=np.float64).reshape(len(logits), -1).T
            shifted = np.exp(raw - raw.max(1, keepdims=True)) if len(raw) else raw
            probabilities = shifted / shifted.sum(1, keepdims=True)
        else:
            probabilities = np.array([float(v) for v in table["probability"]])
        labels = np.array([int(float(v)) if v else -1 for v in table["label"]], dtype=np.int64)
        predictions = np.array([int(float(v)) for v in table["prediction"]], dtype=np.int64)
    except ValueError as error:
        raise _broken(path, f"a value is not a number ({error})") from None
    splits = np.array(table["split"])
    named = table.get("patient_id", [""] * len(splits))  # older files do not have it
    patients = [patient or bag_id for patient, bag_id in zip(named, table["bag_id"])]
    return {
        split: Predictions(
            [b for b, s in zip(table["bag_id"], splits) if s == split],
            labels[splits == split],
            probabilities[splits == split],
            predictions[splits == split],
            [p for p, s in zip(patients, splits) if s == split],
        )
        for split in dict.fromkeys(table["split"])
    }


def _joined(parts: Sequence[Predictions]) -> Predictions:
    return Predictions(
        [bag for part in parts for bag in part.bag_ids],
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.probabilities for part in parts]),
        np.concatenate([part.predictions for part in parts]),
        [patient for part in parts for patient in part.patients],
    )


def _numbered(folder: Path, kind: str) -> list[Path]:
    found = [p for p in folder.iterdir() if p.is_dir() and re.fullmatch(rf"{kind}-\d+", p.name)]
    return sorted(found, key=lambda p: int(p.name.rpartition("-")[2]))


def _json(folder: Path, name: str) -> dict[str, Any]:
    try:
        value = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _broken(folder, f"the file {name} is missing") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _broken(folder / name, f"it cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise _broken(folder / name, f"it holds a {type(value).__name__}, expected an object")
    return value


def _table(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except FileNotFoundError:
        raise _broken(path.parent, f"the file {path.name} is missing") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _broken(path, f"it cannot be read ({error})") from None
    if not rows:
        raise _broken(path, "it is empty")
    head, *body = rows
    for number, row in enumerate(body, start=2):
        if len(row) != len(head):
            raise _broken(path, f"line {number} has {len(row)} values, expected {len(head)}")
    return {name: [row[i] for row in body] for i, name in enumerate(head)}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _broken(path: Path, what: str) -> DataError:
    return DataError(
        f"{path}: {what}; expected the directory of a finished run: train again, or continue it with "
        "`dasmil train --resume`"
    )

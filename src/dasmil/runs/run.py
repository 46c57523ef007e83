"""A run, read: one model on one data set with all its seeds; a cross-validation holds one such run per fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dasmil.errors import DataError, InputError
from dasmil.files import read_csv, write_json
from dasmil.models.storage import MODEL_FILE, read_model
from dasmil.runs import layout
from dasmil.runs.answers import Answers, agreeing, read_answers
from dasmil.runs.predictions import Predictions, read_history, read_predictions, stored_rows, write_predictions
from dasmil.runs.records import json_file, read_config, read_record, read_summary
from dasmil.runs.schema import (
    FORMAT,
    DataRecord,
    DistanceRow,
    OriginRecord,
    RunConfig,
    SeedStatus,
    SeenBags,
    Summary,
    broken,
)
from dasmil.tasks import classification, task_from

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dasmil.models.base import MILModel
    from dasmil.tasks import Task

SPLIT_ORDER = ("test-large", "test", "val", "train")
"""The split whose result tells most is the first of these that was scored."""


@dataclass(frozen=True, eq=False)
class Seed:
    """One trained model of a run; its files are read when they are asked for."""

    path: Path
    number: int

    @classmethod
    def of(cls, run: Path, number: int) -> Seed:
        """A seed of the run in a folder, whether it is trained or not."""
        return cls(layout.seed_folder(run, number), number)

    @property
    def model_file(self) -> Path:
        """Its weights."""
        return self.path / MODEL_FILE

    @property
    def predictions_file(self) -> Path:
        """One row for each bag that it has scored."""
        return self.path / layout.PREDICTIONS

    def model(self) -> MILModel:
        """The trained model, on the CPU and in evaluation mode."""
        return read_model(self.model_file)

    @cached_property
    def status(self) -> SeedStatus:
        """Whether it fitted its training bags, its attempts, the distances it learned."""
        return read_record(SeedStatus, self.path, layout.STATUS)

    @cached_property
    def history(self) -> dict[str, NDArray[np.float64]]:
        """The columns of its training curve [epochs]: epoch, lr, train_loss, ..."""
        return read_history(self.path / layout.HISTORY)

    @cached_property
    def scored(self) -> dict[str, Predictions]:
        """Its predictions of every split."""
        return read_predictions(self.predictions_file)

    @cached_property
    def sets(self) -> dict[str, str]:
        """The set of every bag that it has scored, whatever the task is."""
        rows = read_csv(self.predictions_file)
        if rows and not {"bag_id", "split"} <= rows[0].keys():
            raise broken(self.predictions_file, "it has no columns 'bag_id' and 'split'")
        return {row["bag_id"]: row["split"] for row in rows}

    @cached_property
    def answered(self) -> dict[str, Answers]:
        """What it says about the bags of every split, where the task is no class."""
        return read_answers(self.predictions_file)

    def predictions(self, split: str) -> Predictions:
        """What it says about the bags of a split."""
        if split not in self.scored:
            raise DataError(f"{self.predictions_file} has no rows of the split {split!r}")
        return self.scored[split]

    @property
    def trained(self) -> bool:
        """Whether it took a step; else it is a rule of mean features or of shares, which looks at no distance."""
        epochs = self.history["epoch"]
        if not len(epochs):
            raise broken(self.path / layout.HISTORY, "it has no epoch")
        return bool(epochs[-1] > 0)

    @property
    def stuck(self) -> bool:
        """Whether it did not fit its training bags."""
        return self.status.get("fitted") is False

    @property
    def distances(self) -> Sequence[DistanceRow]:
        """Rows of learned distances: layer, head, theta, beta, midpoint, width, unit; empty without."""
        return self.status.get("learned_distances") or []

    @property
    def biases(self) -> list[dict[str, Any]]:
        """Rows of biases by distance: layer, head, bias, slope or length or table, unit; empty without."""
        return self.status.get("learned_biases") or []


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A finished run directory. seeds: its models by seed; of a cross-validation they are in `folds`, one run each."""

    path: Path
    config: RunConfig
    seeds: Mapping[int, Seed]
    folds: Sequence[Run] = field(default_factory=list)

    @classmethod
    def read(cls, path: str | Path) -> Run:
        """The run in a folder; what is missing or broken is one error that names the file."""
        folder = Path(path)
        if not folder.exists():
            raise InputError(f"{folder} does not exist: expected a run directory written by dasmil train")
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; expected a run directory, as `dasmil train --out` writes it")
        folds = [] if layout.is_begun(folder) else layout.fold_folders(folder)
        if folds:
            _check_all_folds(folder, len(folds))
            parts = [cls.read(fold) for fold in folds]
            return cls(folder, parts[0].config, {}, parts)
        config = read_config(folder)
        seeds = {seed: Seed.of(folder, seed) for seed in config.get("seeds", [])}
        if not seeds:
            raise broken(folder / layout.CONFIG, "it names no seeds")
        for seed in seeds.values():
            if not seed.model_file.is_file():
                raise DataError(f"{seed.model_file} is missing: finish the run with dasmil train ... --resume")
        return cls(folder, config, seeds)

    def __repr__(self) -> str:
        parts = f"{len(self.folds)} folds" if self.folds else f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}"
        return f"Run({str(self.path)!r}, {self.config['model']['name']}, {parts})"

    def plot_roc(self, split: str | None = None) -> Figure:
        """The ROC curve with its 95 % band as a matplotlib figure, see ``dasmil.plot_roc``."""
        import dasmil

        return dasmil.plot_roc(self, split)

    @cached_property
    def data(self) -> DataRecord:
        """Where its bags come from, and what the sets are; of a cross-validation: of the first fold."""
        return self.folds[0].data if self.folds else read_record(DataRecord, self.path, layout.DATA)

    @cached_property
    def versions(self) -> dict[str, Any]:
        """Versions of what computed it."""
        return self.folds[0].versions if self.folds else read_record(dict, self.path, layout.VERSIONS)

    @cached_property
    def summary(self) -> Summary:
        """The scores of all sets."""
        return read_summary(self.path)

    @cached_property
    def seen(self) -> SeenBags | None:
        """The bags that it was trained on and those it keeps locked; None of older runs and of bags in memory."""
        folds = [self.path.parent] if self.path.name.startswith("fold-") else []  # they share one
        for folder in (self.path, *folds):
            if (folder / layout.BAGS).is_file():
                return read_record(SeenBags, folder, layout.BAGS)
        return None

    @property
    def parts(self) -> Sequence[Run]:
        """Its folds, or itself."""
        return self.folds or [self]

    @property
    def out_of_fold(self) -> bool:
        """Whether its set "val" holds out-of-fold predictions of the training bags (default training, auto)."""
        return self.config["training"].get("selection") == "out-of-fold"

    @property
    def all_seeds(self) -> list[Seed]:
        """The seeds of this run, or of all its folds."""
        return [seed for part in self.parts for seed in part.seeds.values()]

    def models(self) -> list[MILModel]:
        """The models of all seeds (and folds)."""
        models = [seed.model() for seed in self.all_seeds]
        for seed, model in zip(self.all_seeds, models, strict=True):
            if model.name != self.model:
                raise DataError(f"{seed.model_file} holds a {model.name} model, but the run is of {self.model}")
        return models

    @cached_property
    def task(self) -> Task | None:
        """What was asked of its bags, where it is no class."""
        return _task_of(self.config)

    def answers(self, split: str) -> list[Answers]:
        """What every seed predicts for a split: true values and outputs; of folds, their bags put together."""
        if self.task is None:
            return [part.answers() for part in self.per_seed(split)]
        if self.seeds:
            return agreeing(self.task, split, {s.predictions_file: s.answered for s in self.seeds.values()})
        return [Answers.joined(parts) for parts in zip(*(fold.answers(split) for fold in self.folds))]

    @property
    def report(self) -> Path:
        """Where its page is, or will be."""
        return self.path / layout.REPORT

    @property
    def model(self) -> str:
        """The name of its model."""
        return self.config["model"]["name"]

    @property
    def options(self) -> dict[str, Any]:
        """The resolved options of the model."""
        return self.config["model"].get("options") or {}

    @property
    def origin(self) -> OriginRecord:
        """Where its bags come from, as it was configured."""
        return self.config["data"]

    @property
    def asked(self) -> Task:
        """The task, whether it is classification or another."""
        return self.task or classification(self.class_names)

    @property
    def dataset(self) -> str:
        """What the bags are: a built-in data set, or the folder they came from."""
        return self.origin.get("name") or self.origin.get("bags") or "own bags"

    @property
    def decision(self) -> float | None:
        """The one threshold that was saved with the run; None of runs from before there was one."""
        return self.summary["threshold"].get("decision")

    @property
    def threshold(self) -> float:
        """Where a probability becomes a positive prediction: of every seed, of their mean, for bags old and new.

        A cross-validation decides about new bags at the mean of its folds' thresholds, about its own at each fold's.
        """
        if self.decision is not None:
            return self.decision
        if self.folds:
            return float(np.mean([fold.threshold for fold in self.folds]))
        return self.summary["threshold"].get("ensemble", 0.5)

    @property
    def thresholds(self) -> list[float]:
        """Where the probability of each seed becomes positive, over all folds; older runs have one for every seed."""
        return [
            value
            for part in self.parts
            for value in part.summary["threshold"].get("per_seed", [part.threshold] * len(part.seeds))
        ]

    @property
    def classes(self) -> int:
        """How many classes its models tell apart."""
        return int(self.options.get("n_classes") or 2)

    @property
    def class_names(self) -> list[str]:
        """Names from the data where they are known, else "negative" and "positive", or numbers."""
        names = self.origin.get("classes")
        if names and len(names) == self.classes:
            return list(names)
        return ["negative", "positive"] if self.classes == 2 else [str(c) for c in range(self.classes)]

    @property
    def splits(self) -> list[str]:
        """Scored splits, the most telling first; those of other names (a further cohort) before validation."""
        found = list(self.summary["splits"])
        rank = {name: place for place, name in enumerate(SPLIT_ORDER)}
        return sorted(found, key=lambda name: (rank.get(name, 1.5), found.index(name)))

    def per_seed(self, split: str) -> list[Predictions]:
        """Predictions for a split, one item per seed; of a cross-validation, the folds' bags put together."""
        if self.seeds:
            found = {seed: seed.predictions(split) for seed in self.seeds.values() if split in seed.scored}
            for seed, part in found.items():
                first = next(iter(found.values()))
                if part.bag_ids != first.bag_ids or part.probabilities.shape != first.probabilities.shape:
                    raise broken(seed.predictions_file, f"its bags of the split {split!r} are not those of other seeds")
            return list(found.values())
        return [Predictions.joined(parts) for parts in zip(*(fold.per_seed(split) for fold in self.folds))]

    def decided(self, split: str) -> list[Predictions]:
        """As `per_seed`, but with the class at the run's threshold (of older runs at that of each seed)."""
        if not self.seeds:
            return [Predictions.joined(parts) for parts in zip(*(fold.decided(split) for fold in self.folds))]
        found, parts = [], self.per_seed(split)
        if len(parts) != len(self.thresholds):
            raise broken(self.path, f"{len(parts)} of {len(self.thresholds)} seeds have predicted the split {split!r}")
        for part, threshold in zip(parts, self.thresholds, strict=True):
            classes = part.probabilities >= threshold if part.probabilities.ndim == 1 else part.predictions
            found.append(replace(part, predictions=np.asarray(classes, dtype=np.int64)))
        return found

    def ensemble(self, split: str) -> Predictions | None:
        """The mean probability of the seeds, and the class at the chosen threshold; each fold has its own."""
        if not self.seeds:
            parts = [part for fold in self.folds if (part := fold.ensemble(split))]
            return Predictions.joined(parts) if parts else None
        parts = self.per_seed(split)
        if not parts:
            return None
        mean = np.mean([part.probabilities for part in parts], axis=0)
        classes = (mean >= self.threshold).astype(np.int64) if mean.ndim == 1 else mean.argmax(1).astype(np.int64)
        logits, first = np.mean([part.logits for part in parts], axis=0), parts[0]
        return Predictions(first.bag_ids, first.labels, logits, mean, classes, first.patient_ids)

    def add_scored(
        self,
        splits: Mapping[str, Mapping[str, Any]],
        described: Mapping[str, Mapping[str, Any]],
        rows: Sequence[Sequence[Mapping[str, Any]]],
    ) -> None:
        """Put sets that were scored after training into a plain run: its summary, its data, each seed's predictions."""
        known = self.summary["splits"]
        for seed, new in zip(self.seeds.values(), rows, strict=True):
            file = seed.predictions_file
            write_predictions(file, [*stored_rows(file, known.keys() - splits.keys()), *new])
        sets = {**self.data.get("splits", {}), **described}
        write_json(self.path / layout.DATA, {**self.data, "splits": sets})
        write_json(self.path / layout.SUMMARY, {**self.summary, "splits": {**known, **splits}})


def origin_of(model_file: Path) -> OriginRecord:
    """Where the bags of the run came from that a model file lies in (RUN/seed-0/...); empty if it lies in none."""
    folder = model_file.resolve().parent.parent
    if not layout.is_begun(folder) or json_file(folder, layout.CONFIG).get("format") != FORMAT:
        return {}
    return read_config(folder)["data"]


def task_of(model_file: Path) -> Task | None:
    """What the run asks of bags that a model file lies in, with what training bags said; None for classes."""
    folder = model_file.resolve().parent.parent
    if not layout.is_begun(folder) or json_file(folder, layout.CONFIG).get("format") != FORMAT:
        return None
    return _task_of(read_config(folder))


def _task_of(config: RunConfig) -> Task | None:
    record = config.get("task")
    return task_from(record) if record else None


def seed_of(model_file: Path) -> Seed | None:
    """The seed of a run that a model file belongs to; None where no predictions lie beside it."""
    number = model_file.parent.name.rpartition("-")[2]
    seed = Seed(model_file.parent, int(number) if number.isdigit() else 0)
    return seed if seed.predictions_file.is_file() else None


def _check_all_folds(folder: Path, begun: int) -> None:
    """The summary over folds is written when all are finished."""
    expected = json_file(folder, layout.SUMMARY).get("folds") if layout.is_finished(folder) else None
    if expected != begun:
        summary = f"its summary is of {expected}" if expected else "no summary of all"
        raise DataError(
            f"{folder} is a cross-validation that is not finished ({begun} folds begun, {summary}): "
            "finish it with the same dasmil train command and --resume"
        )

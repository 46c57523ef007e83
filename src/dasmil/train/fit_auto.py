"""Default training from bags to runs, and to a run directory when asked; `auto.py` has the candidates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dasmil.devices import choose_device
from dasmil.errors import InputError
from dasmil.models import read_model
from dasmil.runs import RunWriter
from dasmil.tasks import Task, resolve_task
from dasmil.train.auto import Library, train_library
from dasmil.train.config import TrainingConfig, training_config
from dasmil.train.feed import Facts, Feed
from dasmil.train.job import Given, seeds_of
from dasmil.train.material import check_alike, check_apart
from dasmil.train.progress import ProgressLine
from dasmil.train.results import write_results
from dasmil.train.state import FinishedAttempt, RunSpec
from dasmil.train.trained import TrainedRun
from dasmil.types import Bag

AUTO = "auto"
SET_NAMES = {"train": "training", "val": "validation"}
Tests = Mapping[str, Sequence[Bag]] | Callable[[], Mapping[str, Sequence[Bag]]]
"""Labelled sets by name, or a function that gives them when they are needed."""
SETTINGS = ("memory_gb", "device")
"""Settings of training that default training takes; all others belong to a single model."""


def default_model(settings: Mapping[str, Any], *others: object) -> str:
    """The model where none is named: auto, or das-mil where something is given that only a single model takes.

    others: options, presets and recipes, empty where they are not given.
    """
    return "das-mil" if any(others) or set(settings) - set(SETTINGS) else AUTO


class Bags(Sequence[Bag]):
    """Two sets of bags as one."""

    def __init__(self, first: Sequence[Bag], second: Sequence[Bag]) -> None:
        self.first, self.second = first, second

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def __getitem__(self, index: int) -> Bag:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.first[index] if index < len(self.first) else self.second[index - len(self.first)]


def fit_auto(
    train_bags: Sequence[Bag],
    val_bags: Sequence[Bag] | None,
    *,
    seeds: int | Sequence[int],
    given: Given,
    runs: Sequence[RunSpec] | None,
    task: Task | str | None,
    out: str | Path | None,
    resume: bool,
    tests: Tests | None,
    data: Mapping[str, Any] | None,
    note: Callable[[str], None] | None,
    progress: bool | None,
) -> list[TrainedRun]:
    """As `dasmil.fit` for the model "auto"; a seed decides the folds and the random weights of networks."""
    config = _checked(given, runs)
    asked = resolve_task(task, train_bags)
    bags = train_bags if val_bags is None or not len(val_bags) else Bags(train_bags, val_bags)
    feed = Feed(bags, choose_device(config.device), memory_gb=config.memory_gb, name="training", task=asked)
    if len(feed.facts.feature_shape) != 1:
        raise InputError(
            f"instances have features of shape {feed.facts.feature_shape}, but default training (auto) reads vectors: "
            "name a model, for example --model das-mil"
        )
    feed.facts = replace(feed.facts, task=feed.facts.task.fitted(feed.facts.targets))
    numbers = seeds_of(seeds)
    writer = None
    if out is not None:
        writer = RunWriter.open(out, _resolved(feed, config, numbers, data), _data(feed, data), resume=resume)
    line = ProgressLine() if progress or (progress is None and note is None) else None
    tell = note or (line.note if line else None) or (lambda text: None)
    try:
        trained = [_trained(feed, seed, config, tell, writer) for seed in numbers]
    finally:
        if line:
            line.close()
    if writer is not None and any(outputs is not None for _, outputs in trained):
        _write(writer, feed, trained, tests, config)
    return [run for run, _ in trained]


def _trained(
    feed: Feed, seed: int, config: TrainingConfig, note: Callable[[str], None], writer: RunWriter | None
) -> tuple[TrainedRun, np.ndarray | None]:
    """The run of a seed and its out-of-fold outputs; of a finished run that is resumed, as it was stored."""
    stored = None if writer is None else writer.stored_model(seed)
    if stored is not None:
        return _run(feed, seed, read_model(stored), None), None
    library = train_library(feed, seed=seed, memory_gb=config.memory_gb, note=note)
    return _run(feed, seed, library.model, library), library.outputs


def _run(feed: Feed, seed: int, model: Any, library: Library | None) -> TrainedRun:
    loss = rank = chance = float("nan")
    record: dict[str, Any] | None = None
    if library is not None:
        name = library.selected.name
        loss, rank, chance = library.selected.losses[name], library.scores[name], library.evidence.p
        record = dict(library.record())
    row = {"epoch": 0, "train_loss": loss, "seconds": sum(library.seconds.values()) if library else 0.0}
    judged = {"loss": loss, "auroc": rank, "chance": chance, "epoch": 0, "bags": len(feed.facts.ids)}
    attempt = FinishedAttempt(0, loss, True, "", 0, [row], dict(model.config), start=0, rivals=[], held_out=judged)
    return TrainedRun(
        seed=seed, lr=0.0, weight_decay=0.0, model=model, history=[row], fitted=True, reason="", train_loss=loss,
        epoch=0, attempts=[attempt], task=feed.facts.task, library=record,
    )  # fmt: skip


def _write(
    writer: RunWriter,
    feed: Feed,
    trained: Sequence[tuple[TrainedRun, np.ndarray | None]],
    tests: Tests | None,
    config: TrainingConfig,
) -> None:
    """Results of all sets; the set "val" holds the training bags with their out-of-fold outputs."""
    runs = [run for run, _ in trained]
    outputs = np.stack([found for _, found in trained if found is not None])
    sets = with_tests({"train": feed}, tests, config)
    sets = {"train": feed, "val": feed, **{name: own for name, own in sets.items() if name != "train"}}
    write_results(writer, runs, sets, {"val": outputs})


def _checked(given: Given, runs: Sequence[RunSpec] | None) -> TrainingConfig:
    if given.preset is not None or given.options or runs is not None:
        raise InputError("presets, options and learning rates belong to a single model: name it, for example das-mil")
    return auto_config(given.settings)


def auto_config(settings: Mapping[str, Any]) -> TrainingConfig:
    """The settings that default training takes; any other is refused."""
    config = training_config(settings)
    if others := sorted(set(settings) - set(SETTINGS) - {"tensorboard"}):
        raise InputError(
            f"{others[0]} is a setting of a single model, which default training (auto) does not take: leave it out, "
            "or name a model, for example --model das-mil"
        )
    return config


def _resolved(
    feed: Feed, config: TrainingConfig, seeds: Sequence[int], data: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The content of config.json."""
    task, facts = feed.facts.task, feed.facts
    shape = {"outputs": task.outputs} if task.labels is None else {"n_classes": len(task.labels.classes)}
    options = {"in_features": facts.feature_shape[0], "unit": facts.unit, **shape}
    return {
        "model": {"name": AUTO, "preset": None, "options": options},
        **({} if task.labels is not None else {"task": task.record()}),
        "data": dict(data or {}),
        "training": {**{name: getattr(config, name) for name in SETTINGS}, "selection": "out-of-fold"},
        "seeds": list(seeds),
    }


def _data(feed: Feed, data: Mapping[str, Any] | None) -> dict[str, Any]:
    return data_record({"train": feed.facts, "val": feed.facts}, data)


def with_tests(given: Mapping[str, Feed], tests: Tests | None, config: TrainingConfig) -> dict[str, Feed]:
    """All sets that are scored. Test bags are opened only here, when the weights are final."""
    seen = {SET_NAMES[name]: feed.facts for name, feed in given.items()}
    scored = dict(given)
    for name, bags in (tests() if callable(tests) else tests or {}).items():
        train = given["train"]
        feed = Feed(bags, train.device, memory_gb=config.memory_gb, name=name, task=train.facts.task)
        check_alike(given["train"].facts, feed.facts, name)
        check_apart(seen, feed.facts, name)
        scored[name] = feed
    return scored


def data_record(sets: Mapping[str, Facts], data: Mapping[str, Any] | None) -> dict[str, Any]:
    """The content of data.json. The fingerprint is that of the training (and validation) bags."""
    chosen = "".join(sets[name].fingerprint for name in ("train", "val") if name in sets)
    return {
        **(data or {}),
        "fingerprint": hashlib.sha256(chosen.encode()).hexdigest(),
        "splits": {name: facts.describe() for name, facts in sets.items()},
    }

"""A job and its bags, ready to train: features as training reads them, lengths, starts, and the bags that judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from dasmil.candidates.whitening import Directions, Sample, WhitenedBags
from dasmil.devices import choose_device
from dasmil.errors import InputError
from dasmil.tasks import Task
from dasmil.train.competition import line_up
from dasmil.train.config import TrainingConfig
from dasmil.train.distances import with_scale, without_places
from dasmil.train.factory import Factory
from dasmil.train.feed import Facts, Feed
from dasmil.train.held_out import Judge
from dasmil.train.job import Job
from dasmil.train.loss import Loss
from dasmil.types import Bag


@dataclass(frozen=True)
class BagSets:
    """The bags of a training as they were given: read once, checked, and sampled on the way."""

    train: Feed
    val: Feed | None
    sample: Sample

    @staticmethod
    def read(
        train_bags: Sequence[Bag],
        val_bags: Sequence[Bag] | None,
        config: TrainingConfig,
        task: Task | None = None,
    ) -> BagSets:
        """task: what is asked of the bags, None: their class; what it takes from training bags is fitted here."""
        device, sample, val = choose_device(config.device), Sample(), None
        memory = config.memory_gb
        train = Feed(train_bags, device, memory_gb=memory, name="training", task=task, observe=sample.add)
        train.facts = replace(train.facts, task=train.facts.task.fitted(train.facts.targets))
        if val_bags is not None and len(val_bags):
            val = Feed(val_bags, device, memory_gb=memory, name="validation", task=train.facts.task)
            check_alike(train.facts, val.facts, "validation")
            check_apart({"training": train.facts}, val.facts, "validation")
        return BagSets(train, val, sample)

    @property
    def by_name(self) -> dict[str, Feed]:
        """The sets under their names in a run directory."""
        return {"train": self.train} | ({} if self.val is None else {"val": self.val})


@dataclass(frozen=True)
class Material:
    """What all attempts of a training share. judge: training bags that say which start is best, if there are enough."""

    job: Job
    train: Feed
    val: Feed | None
    judge: Judge | None
    factory: Factory
    loss: Loss
    device: torch.device

    @property
    def config(self) -> TrainingConfig:
        return self.job.config


def gather(job: Job, sets: BagSets) -> Material:
    """Everything that is fitted before training, from the training bags alone."""
    config, classes = job.config, job.outline.classes
    device = choose_device(config.device)
    if config.selection == "best-val":
        _check_monitor(sets.val, config.monitor, classes)
    train, val, directions = sets.train, sets.val, None
    loss = _loss(train.facts, config)
    if job.whitens:
        directions = sets.sample.directions(job.options.get("encoder_features"))
        train = whitened_feed(train, directions, device, config.memory_gb)
        val = None if val is None else whitened_feed(val, directions, device, config.memory_gb)
    job = without_places(job, train)
    options, lengths = with_scale(job, train)
    starts, judge = line_up(job, train, directions)
    if job.shaped_by_rule and len(starts) == 1:
        options |= starts[0].options
    learn = judge.learn if judge else train
    factory = Factory(
        job.model,
        options,
        lengths,
        starts,
        learn,
        train,
        directions=directions,
        scaled=config.feature_step != "common",
        constant=loss.constant,
    )
    return Material(job, train, val, judge, factory, loss, device)


def _loss(facts: Facts, config: TrainingConfig) -> Loss:
    if facts.task.labels is None and (config.sampling != "all" or config.mixup):
        raise InputError(
            f"sampling='balanced' and mixup need classes, but the task is {facts.task.kind}: set sampling=all mixup=0"
        )
    loss = Loss(facts.task, facts.targets, balance=config.balance_classes and config.sampling == "all")
    if config.monitor not in ("loss", *loss.metrics):
        known = ", ".join(("loss", *loss.metrics))
        raise InputError(f"monitor is {config.monitor!r}, but {facts.task.kind} has {known}")
    return loss


def whitened_feed(feed: Feed, directions: Directions, device: torch.device, memory_gb: float) -> Feed:
    """The same bags with their features read in these directions, in memory where they then fit."""
    bags: Sequence[Bag] = WhitenedBags(feed.bags, directions)
    if feed.facts.sizes.sum() * len(directions) * 4 <= memory_gb * 2**30:
        bags = list(bags)
    return Feed(bags, device, memory_gb=memory_gb, task=feed.facts.task)


def check_alike(train: Facts, other: Facts, name: str) -> None:
    """Refuse a set of bags of another kind than the training bags."""
    if train.feature_shape != other.feature_shape or train.unit != other.unit:
        raise InputError(
            f"the {name} bags have features {other.feature_shape} in {other.unit}, the training bags "
            f"{train.feature_shape} in {train.unit}: they must come from the same encoder and unit"
        )
    if train.task.labels is not None and other.classes > max(2, train.classes):
        raise InputError(f"the {name} bags have a class {other.classes - 1} that no training bag has")


def check_apart(seen: dict[str, Facts], other: Facts, name: str) -> None:
    """Refuse a set that shares bags with one that was seen before."""
    for kind, facts in seen.items():
        shared = set(facts.ids) & set(other.ids)
        if shared:
            raise InputError(
                f"{len(shared)} {name} bags are {kind} bags too (for example {min(shared)!r}): separate them"
            )


def _check_monitor(val: Feed | None, monitor: str, classes: int) -> None:
    """Whether validation bags can tell which epoch is best."""
    if val is None:
        raise InputError("selection 'best-val' needs validation bags; without them only the last epoch can be kept")
    missing = sorted(set(range(classes)) - set(val.facts.labels.tolist())) if val.facts.task.labels is not None else []
    if monitor != "loss" and missing:
        raise InputError(
            f"the validation bags have none of class {missing[0]}, so selection 'best-val' cannot compare their "
            f"{monitor}: add some, or set monitor to 'loss'"
        )

"""`dasmil.fit`: from bags to trained runs, and to a run directory when asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dasmil.baselines.whitening import MOST, Directions, Sample, WhitenedBags
from dasmil.devices import choose_device
from dasmil.errors import InputError, shown
from dasmil.models import MODELS, resolve_options
from dasmil.models.base import MILModel
from dasmil.runs import RunWriter
from dasmil.stats import probabilities
from dasmil.train.config import TrainingConfig, training_config
from dasmil.train.defaults import default_options, default_settings
from dasmil.train.distances import finds_length, with_scale
from dasmil.train.evaluate import model_logits
from dasmil.train.factory import Factory
from dasmil.train.feed import Facts, Feed
from dasmil.train.held_out import Judge
from dasmil.train.loop import Finished, Progress, RunSpec, Training
from dasmil.train.loss import BagLoss
from dasmil.train.results import write_results
from dasmil.train.starts import length_starts, mean_start, simple_starts
from dasmil.types import Bag

START_RATES = (1.0, 2.0)
"""Learning rates of the starts of one length, in units of the run's, where features are not whitened."""
SET_NAMES = {"train": "training", "val": "validation"}


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """One trained run: its model (evaluation mode), its curve, and whether it fitted the training bags."""

    seed: int
    lr: float
    weight_decay: float
    model: MILModel
    history: list[dict[str, float]]
    """One row an epoch, as in metrics.csv."""
    fitted: bool
    reason: str
    """Why it counts as stuck; empty when it fitted."""
    train_loss: float
    epoch: int
    """The epoch of the weights."""
    attempts: list[Finished]
    """The chosen attempt first."""

    def predict(self, bags: Sequence[Bag]) -> NDArray[np.float64]:
        """Probability of class 1 per bag [n], or of every class [n, classes]."""
        device = next(self.model.parameters()).device
        feed = Feed(bags, device, memory_gb=1.0, name="given", labelled=False)
        return probabilities(model_logits([self.model], feed), self.model.n_classes)[0]


def fit(
    model_name: str,
    train_bags: Sequence[Bag],
    val_bags: Sequence[Bag] | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    model_options: Mapping[str, Any] | None = None,
    preset: str | None = None,
    runs: Sequence[RunSpec] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    tests: Mapping[str, Sequence[Bag]] | Callable[[], Mapping[str, Sequence[Bag]]] | None = None,
    data: Mapping[str, Any] | None = None,
    on_epoch: Callable[[Progress], None] | None = None,
    note: Callable[[str], None] | None = None,
    **settings: Any,
) -> list[TrainedRun]:
    """Train a model on bags, several runs at once; returns one TrainedRun per seed, in order.

    Example: ``runs = dasmil.fit("das-mil", train, val, seeds=5, preset="mnist-collage", out="runs/collage")``

    train_bags, val_bags: labelled; validation bags choose thresholds, and with selection="best-val" the epoch.
    seeds: a number (5 = 0, 1, 2, 3, 4) or a list; runs: instead of seeds, RunSpecs that differ in seed, learning rate
    or weight decay (only without ``out``). preset, model_options: sizes of the model as in the paper, and options on
    top of them. settings: any field of TrainingConfig (epochs, lr, ...). on_epoch: called after every epoch; note:
    takes sentences about what was decided on the way.

    out: a folder for the run directory. Only with it: resume, to go on with the run that is there; tests, further
    labelled sets by name that are scored once after training has ended (or a function that then gives them), by which
    nothing is ever chosen; data, what to note about the origin of the bags.
    """
    config = training_config(settings)
    if runs is not None and out is not None:
        raise InputError("runs with their own learning rates are not written to a run directory: leave out= away")
    if out is None:
        asked = {"tests": tests is not None, "data": data is not None, "resume": resume}
        if useless := ", ".join(f"{name}=" for name, there in asked.items() if there):
            raise InputError(f"{useless} came without out=, the run directory that it is for: give both")
    device = choose_device(config.device)
    sample = Sample()
    train = Feed(train_bags, device, memory_gb=config.memory_gb, name="training", observe=sample.add)
    shape = train.facts.feature_shape
    config = training_config({**default_settings(model_name, shape, len(train.facts.ids), settings), **settings})
    specs = list(runs) if runs is not None else _specs(seeds, config)
    val = None
    classes = max(2, train.facts.classes)
    if val_bags is not None and len(val_bags):
        val = Feed(val_bags, device, memory_gb=config.memory_gb, name="validation")
        _check_alike(train.facts, val.facts, "validation", classes)
        _check_apart({"training": train.facts}, val.facts, "validation")
    if config.selection == "best-val":
        _check_monitor(val, config.monitor, classes)
    BagLoss.of(train.facts.labels, classes, config.balance_classes, device)  # refuses before a folder is made
    options = default_options(model_name, shape, preset, model_options or {})
    options = bag_options(model_name, preset, options, shape, train.facts.unit, classes)
    given = {"train": train} | ({} if val is None else {"val": val})
    directions = sample.directions(options.get("encoder_features") or MOST) if _whitens(options) else None
    if directions is not None:
        train = whitened_feed(train, directions, device, config.memory_gb)
        val = None if val is None else whitened_feed(val, directions, device, config.memory_gb)
    options, lengths = with_scale(model_name, options, train, from_data=config.distance_init == "data")
    compete = config.starts > 1 and finds_length(options, lengths)
    judge = Judge.of(train) if compete and config.held_out else None
    learn = judge.learn if judge else train
    starts = length_starts(config.starts if compete else 1, START_RATES if compete and directions is None else (1.0,))
    if directions is not None and classes == 2 and config.simple_starts:
        if judge:
            starts = [*simple_starts(learn, directions.within, config.simple_starts), *starts]
        elif MODELS[model_name].position == "none":
            starts = [mean_start(learn)]
    factory = Factory(
        model_name,
        options,
        lengths,
        starts,
        learn,
        train,
        directions=directions,
        scaled=config.feature_step != "common",
    )

    store = None
    if out is not None:
        described = {
            "name": model_name,
            "preset": preset,
            "options": factory.finish(factory.make(specs[0].seed, 0)).config,
        }
        resolved = {
            "model": described,
            "data": dict(data or {}),
            "training": config.model_dump(mode="json"),
            "seeds": [s.seed for s in specs],
        }
        sets = {name: feed.facts for name, feed in given.items()}
        store = RunWriter.open(out, resolved, data_record(sets, data), resume=resume)
    listeners = _listeners(on_epoch, store, config)
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if device.type == "cuda" else []):
        training = Training(
            factory, specs, train, val, config,
            classes=classes, device=device, judge=judge, store=store, on_epoch=listeners, note=note,
        )  # fmt: skip
        outcome = training.run()
    trained = [
        TrainedRun(
            spec.seed, spec.lr * factory.start(attempts[0].start).rate, spec.weight_decay, factory.finish(model),
            attempts[0].history, attempts[0].fitted, attempts[0].reason,
            attempts[0].train_loss, attempts[0].epoch, attempts,
        )
        for spec, (model, attempts) in zip(specs, outcome, strict=True)
    ]  # fmt: skip
    if store is not None:
        sets = dict(given)
        # Test bags are opened only here, when the weights are final.
        seen = {SET_NAMES[name]: feed.facts for name, feed in given.items()}
        for name, bags in (tests() if callable(tests) else tests or {}).items():
            sets[name] = Feed(bags, device, memory_gb=config.memory_gb, name=name)
            _check_alike(given["train"].facts, sets[name].facts, name, classes)
            _check_apart(seen, sets[name].facts, name)
        write_results(store, trained, sets, classes)
    return trained


def _whitens(options: Mapping[str, Any]) -> bool:
    return options.get("encoder") == "whitened"


def whitened_feed(feed: Feed, directions: Directions, device: torch.device, memory_gb: float) -> Feed:
    """The same bags with their features read in these directions, in memory where they then fit."""
    bags: Sequence[Bag] = WhitenedBags(feed.bags, directions)
    if feed.facts.sizes.sum() * len(directions) * 4 <= memory_gb * 2**30:
        bags = list(bags)
    return Feed(bags, device, memory_gb=memory_gb)


MOST_SEEDS = 1000


def _specs(seeds: int | Sequence[int], config: TrainingConfig) -> list[RunSpec]:
    numbers = list(range(min(seeds, MOST_SEEDS + 1))) if isinstance(seeds, int) else list(seeds)
    whole = all(isinstance(number, int) and 0 <= number < 2**31 for number in numbers)
    if not numbers or len(numbers) > MOST_SEEDS or not whole or len(set(numbers)) < len(numbers):
        raise InputError(
            f"seeds are {shown(seeds)}, expected a number from 1 to {MOST_SEEDS:,}, or different numbers from 0 on"
        )
    return [RunSpec(seed, config.lr, config.weight_decay) for seed in numbers]


def bag_options(
    name: str, preset: str | None, given: Mapping[str, Any], shape: tuple[int, ...], unit: str, classes: int
) -> dict[str, Any]:
    """The options of preset and user, with what the bags themselves say: input size, unit and number of classes."""
    options = resolve_options(name, preset, **given)
    if "encoder" not in options and shape == (1, 28, 28):
        options["encoder"] = "mnist-cnn"
    if options.get("encoder") != "mnist-cnn":
        if len(shape) != 1:
            raise InputError(f"instances have features of shape {shape}: only the encoder 'mnist-cnn' takes pictures")
        if options.setdefault("in_features", shape[0]) != shape[0]:
            raise InputError(f"in_features is {options['in_features']}, but the bags have {shape[0]} features")
    if "unit" in options and options["unit"] != unit:
        raise InputError(f"the model's unit is {options['unit']!r}, but the bags' coordinates are in {unit!r}")
    options["unit"] = unit
    if options.setdefault("n_classes", classes) != classes:
        raise InputError(f"n_classes is {options['n_classes']}, but the training labels have {classes} classes")
    return options


def _check_alike(train: Facts, other: Facts, name: str, classes: int) -> None:
    if train.feature_shape != other.feature_shape or train.unit != other.unit:
        raise InputError(
            f"the {name} bags have features {other.feature_shape} in {other.unit}, the training bags "
            f"{train.feature_shape} in {train.unit}: they must come from the same encoder and unit"
        )
    if other.classes > classes:
        raise InputError(f"the {name} bags have a class {other.classes - 1} that no training bag has")


def _check_apart(seen: Mapping[str, Facts], other: Facts, name: str) -> None:
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
    missing = sorted(set(range(classes)) - set(val.facts.labels.tolist()))
    if monitor != "loss" and missing:
        raise InputError(
            f"the validation bags have none of class {missing[0]}, so selection 'best-val' cannot compare their "
            f"{monitor}: add some, or set monitor to 'loss'"
        )


def data_record(sets: Mapping[str, Facts], data: Mapping[str, Any] | None) -> dict[str, Any]:
    """The content of data.json. The fingerprint is that of the training (and validation) bags."""
    import hashlib

    chosen = "".join(sets[name].fingerprint for name in ("train", "val") if name in sets)
    return {
        **(data or {}),
        "fingerprint": hashlib.sha256(chosen.encode()).hexdigest(),
        "splits": {name: facts.describe() for name, facts in sets.items()},
    }


def _listeners(
    on_epoch: Callable[[Progress], None] | None, store: RunWriter | None, config: TrainingConfig
) -> Callable[[Progress], None] | None:
    if not config.tensorboard:
        return on_epoch
    if store is None:
        raise InputError("tensorboard events need a run directory: give out=")
    from dasmil.train.tensorboard import EventWriter

    events = EventWriter(store.seed_path)

    def both(progress: Progress) -> None:
        events(progress)
        if on_epoch:
            on_epoch(progress)

    return both

"""`dasmil.fit`: from bags to trained runs, and to a run directory when asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dasmil.errors import InputError, shown
from dasmil.models import MODELS
from dasmil.runs import RunWriter
from dasmil.tasks import Task, resolve_task, task_from
from dasmil.train.config import TrainingConfig, training_config
from dasmil.train.fit_auto import AUTO, Tests, data_record, fit_auto, with_tests
from dasmil.train.job import Given, Job, prepare
from dasmil.train.material import BagSets, Material, gather
from dasmil.train.progress import ProgressLine
from dasmil.train.restarts import Training
from dasmil.train.results import write_results
from dasmil.train.state import Progress, RunSpec
from dasmil.train.trained import TrainedRun
from dasmil.types import Bag, need_sequence

Listener = Callable[[Progress], None]


def fit(
    model_name: str | Sequence[Bag],
    train_bags: Sequence[Bag] | None = None,
    val_bags: Sequence[Bag] | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    model_options: Mapping[str, Any] | None = None,
    preset: str | None = None,
    runs: Sequence[RunSpec] | None = None,
    task: Task | str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    tests: Tests | None = None,
    data: Mapping[str, Any] | None = None,
    on_epoch: Listener | None = None,
    note: Callable[[str], None] | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> list[TrainedRun]:
    """Train a model on bags, several runs at once; returns one TrainedRun per seed, in order.

    Examples: ``runs = dasmil.fit(bags)`` (default training), or
    ``dasmil.fit("das-mil", train, val, seeds=5, preset="mnist-collage", out="runs/collage")``

    model_name: a model of ``dasmil.list_models()``, or "auto" (also where it is left out): simple regressions,
    attention and DAS-MIL are judged by cross-validation over the training patients, and the simplest good one is kept
    (docs/training.md). It takes validation bags as further training bags.

    task: None is the label; else "survival" or a task of `dasmil.survival`, `regression`, `multilabel` (docs/tasks.md).
    train_bags, val_bags: labelled; validation bags choose thresholds, and with selection="best-val" the epoch.
    seeds: a number (5 = 0, 1, 2, 3, 4) or a list; runs: instead of seeds, RunSpecs that differ in seed, learning rate
    or weight decay (only without ``out``). preset, model_options: sizes of the model as in the paper, and options on
    top of them. settings: any field of TrainingConfig (epochs, lr, ...). on_epoch: called after every epoch; note:
    takes sentences about what was decided on the way. progress: shows both on standard error, one line that is written
    over (a few lines where that cannot be seen); default: unless on_epoch is given.

    out: a folder for the run directory. Only with it: resume, to go on with the run that is there; tests, further
    labelled sets by name that are scored once after training has ended (or a function that then gives them), by which
    nothing is ever chosen; data, what to note about the origin of the bags.
    """
    if not isinstance(model_name, str) and not isinstance(train_bags, str):
        model_name, train_bags, val_bags = AUTO, model_name, train_bags if val_bags is None else val_bags
    _check_given(model_name, train_bags, val_bags)
    assert isinstance(model_name, str)
    assert train_bags is not None
    if model_name == AUTO:
        return fit_auto(
            train_bags, val_bags, seeds=seeds, given=Given(preset, model_options or {}, settings), runs=runs, task=task,
            out=out, resume=resume, tests=tests, data=data, note=note, progress=progress,
        )  # fmt: skip
    config = training_config(settings)
    if runs is not None and out is not None:
        raise InputError("runs with their own learning rates are not written to a run directory: leave out= away")
    if out is None:
        _refuse_useless(tests=tests is not None, data=data is not None, resume=resume)
    sets = BagSets.read(train_bags, val_bags, config, resolve_task(task, train_bags))
    job = prepare(model_name, sets.train.facts.outline, Given(preset, model_options or {}, settings))
    specs = list(runs) if runs is not None else job.specs(seeds)
    material = gather(job, sets)
    store = None
    if out is not None:
        facts = {name: feed.facts for name, feed in sets.by_name.items()}
        store = RunWriter.open(out, _resolved(material, specs, data), data_record(facts, data), resume=resume)
    shown = ProgressLine() if progress or (progress is None and on_epoch is None) else None
    heard = _all([on_epoch, shown.epoch if shown else None])
    try:
        trained = train(material, specs, store=store, on_epoch=heard, note=note or (shown.note if shown else None))
    finally:
        if shown:
            shown.close()
    if store is not None:
        write_results(store, trained, with_tests(sets.by_name, tests, job.config))
    return trained


def _check_given(model_name: Any, train_bags: Any, val_bags: Any) -> None:
    if not isinstance(model_name, str):
        found = shown(type(model_name).__name__)
        raise InputError(f'the model is {found}, expected its name, and bags after it: dasmil.fit("das-mil", bags)')
    need_sequence(train_bags)
    if val_bags is not None:
        need_sequence(val_bags)


def _refuse_useless(**asked: bool) -> None:
    if useless := ", ".join(f"{name}=" for name, there in asked.items() if there):
        raise InputError(f"{useless} came without out=, the run directory that it is for: give both")


def fit_job(
    job: Job,
    train_bags: Sequence[Bag],
    val_bags: Sequence[Bag] | None,
    specs: Sequence[RunSpec],
    *,
    on_epoch: Listener | None = None,
) -> list[TrainedRun]:
    """Train a job that was resolved before, without a run directory; one TrainedRun for each of ``specs``."""
    material = gather(job, BagSets.read(train_bags, val_bags, job.config, task_from(job.outline.task)))
    return train(material, specs, on_epoch=on_epoch)


def train(
    material: Material,
    specs: Sequence[RunSpec],
    *,
    store: RunWriter | None = None,
    on_epoch: Listener | None = None,
    note: Callable[[str], None] | None = None,
) -> list[TrainedRun]:
    """Train these runs to the end; the randomness of the rest of the program stays as it is."""
    device, factory = material.device, material.factory
    if material.job.at_one_place and note:
        model = MODELS[material.job.model]
        note(f"No two instances of a training bag lie apart, so {model.name} {model.without_distances_it}.")
    listeners = _all([on_epoch, _events(store, material.config)])
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if device.type == "cuda" else []):
        outcome = Training(material, list(specs), store=store, on_epoch=listeners, note=note).run()
    return [
        TrainedRun(
            seed=spec.seed,
            lr=spec.lr * factory.start(attempts[0].start).rate,
            weight_decay=spec.weight_decay,
            model=factory.finish(model),
            history=attempts[0].history,
            fitted=attempts[0].fitted,
            reason=attempts[0].reason,
            train_loss=attempts[0].train_loss,
            epoch=attempts[0].epoch,
            attempts=attempts,
            task=material.train.facts.task,
        )
        for spec, (model, attempts) in zip(specs, outcome, strict=True)
    ]


def _resolved(material: Material, specs: Sequence[RunSpec], data: Mapping[str, Any] | None) -> dict[str, Any]:
    """The content of config.json."""
    job, factory = material.job, material.factory
    options = factory.finish(factory.make(specs[0].seed, 0)).config
    return {
        "model": {"name": job.model, "preset": job.preset, "options": options},
        **({} if job.outline.task is None else {"task": job.outline.task}),
        "data": dict(data or {}),
        "training": job.config.model_dump(mode="json"),
        "seeds": [s.seed for s in specs],
    }


def _events(store: RunWriter | None, config: TrainingConfig) -> Listener | None:
    if not config.tensorboard:
        return None
    if store is None:
        raise InputError("tensorboard events need a run directory: give out=")
    from dasmil.train.tensorboard import EventWriter

    return EventWriter(store.seed_path)


def _all(listeners: Sequence[Listener | None]) -> Listener | None:
    """One listener that tells all of them."""
    found = [listener for listener in listeners if listener]

    def tell(progress: Progress) -> None:
        for listener in found:
            listener(progress)

    return tell if found else None

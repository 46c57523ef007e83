"""Training as a study does it: rounds from a source of bags, folds with their summary, a report; a Run comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dasmil.errors import DasmilError, InputError, one_line, shown
from dasmil.report import write_report
from dasmil.runs import Run, check_kind, fold_folder, is_begun, note_in_data, save_recalibration
from dasmil.study.baselines import add_baselines
from dasmil.study.covariates import add_covariates
from dasmil.study.data import StudyData
from dasmil.study.domain import note_domain
from dasmil.study.folds import write_fold_summary
from dasmil.study.held_out import opened_tests
from dasmil.study.maps import add_maps
from dasmil.study.notes import Note, silent
from dasmil.study.progress import Watch, unseen
from dasmil.study.rounds import Round, bag_rounds
from dasmil.study.seen import note_seen
from dasmil.study.settings import Settings, gather_settings
from dasmil.study.spec import CohortSpec
from dasmil.study.subgroups import check_subgroups, keep_subgroups
from dasmil.study.units import train_on_engine
from dasmil.train.fit_auto import default_model
from dasmil.train.job import seeds_of

if TYPE_CHECKING:
    from dasmil.engine import EngineOptions
    from dasmil.tasks import Task
    from dasmil.types import Bag

Data = CohortSpec | str
"""A cohort of one's own, or the name of a built-in data set."""


def train_cohort(
    data: Data,
    model: str | None = None,
    *,
    out: str | Path,
    seeds: int = 1,
    test: bool = False,
    split_seed: int = 0,
    protocol: Literal["clean", "published"] = "clean",
    recipe: str | None = None,
    preset: str | None = None,
    options: Mapping[str, Any] | None = None,
    baselines: bool = True,
    recalibrate: str | None = None,
    subgroups: Sequence[str] = (),
    log: str | None = None,
    resume: bool = False,
    note: Note = silent,
    watch: Watch = unseen,
    **settings: Any,
) -> Run:
    """Split a cohort by patient, train on it and write a run directory with its report, as `dasmil train` does.

    Example: ``run = dasmil.train_cohort(dasmil.CohortSpec(bags="features", labels="labels.csv"), out="runs/mine")``

    The test set stays locked until `dasmil.evaluate`, or ``test=True`` scores it right after training; either is
    counted. options: of the model; settings: any field of TrainingConfig (epochs, lr, ...), on top of ``recipe``.
    baselines: of one's own bags, fit the rules of `dasmil.baselines` on the training bags too; the report has them
    beside the model. recalibrate: platt, isotonic or temperature, fitted on bags that did not train the models.
    subgroups: columns or cuts of the label table ("site", "age>65") whose scores the report compares. resume: go on
    with the run in ``out``. note, watch: take what is said, and the progress of every round. log: also send the curves
    to tensorboard, wandb or mlflow.
    """
    spec = study_data(data, recipe=recipe, protocol=protocol, split_seed=split_seed, open_test=test)
    model = model or default_model(settings, options, recipe, preset, spec.data)
    chosen = gather_settings(model, recipe, preset, settings, options or {}, spec.preset)
    return train_study(
        spec, model, Path(out), chosen, seeds=seeds, baselines=baselines, recalibrate=recalibrate, subgroups=subgroups,
        log=log, resume=resume, note=note, watch=watch,
    )  # fmt: skip


def cross_validate(
    data: CohortSpec | Sequence[Bag],
    model: str | None = None,
    *,
    out: str | Path,
    folds: int = 5,
    seeds: int = 1,
    split_seed: int = 0,
    recipe: str | None = None,
    preset: str | None = None,
    options: Mapping[str, Any] | None = None,
    task: Task | str | None = None,
    baselines: bool = True,
    recalibrate: str | None = None,
    subgroups: Sequence[str] = (),
    engine: EngineOptions | None = None,
    resume: bool = False,
    note: Note = silent,
    watch: Watch = unseen,
    **settings: Any,
) -> Run:
    """Cross-validation by patient, stratified by class, as `dasmil train --folds` does; data: a cohort, or bags.

    Example: ``run = dasmil.cross_validate(bags, "das-mil", folds=5, seeds=3, out="runs/folds")``

    Returns the run over all folds: `run.summary` is the mean over folds, `run.folds` are their own runs. task: of bags
    in memory, as in `fit`; a CohortSpec says it itself. engine: spreads the folds of a CohortSpec over processes or
    machines. The rest is as in `train_cohort`.
    """
    model = model or default_model(settings, options, recipe, preset)
    if isinstance(data, CohortSpec):
        if task is not None:
            raise InputError("task= is for bags in memory: a CohortSpec has it with its columns, CohortSpec(task=...)")
        spec = study_data(data, recipe=recipe, split_seed=split_seed, folds=folds)
        chosen = gather_settings(model, recipe, preset, settings, options or {}, spec.preset)
        return train_study(
            spec, model, Path(out), chosen, seeds=seeds, baselines=baselines, recalibrate=recalibrate,
            subgroups=subgroups, engine=engine, resume=resume, note=note, watch=watch,
        )  # fmt: skip
    if engine is not None:
        raise InputError("bags in memory cannot be sent to an engine: give a CohortSpec that says where they are")
    chosen = gather_settings(model, recipe, preset, settings, options or {})
    rounds = bag_rounds(data, folds, split_seed, note, task)
    _train_here(rounds, model, Path(out), chosen, seeds=seeds, resume=resume, note=note, watch=watch)
    return finish(Path(out), rounds, baselines=baselines, recalibrate=recalibrate, subgroups=subgroups, note=note)


def train_study(
    spec: StudyData,
    model: str,
    out: Path,
    chosen: Settings,
    *,
    seeds: int,
    baselines: bool = True,
    recalibrate: str | None = None,
    subgroups: Sequence[str] = (),
    engine: EngineOptions | None = None,
    log: str | None = None,
    resume: bool = False,
    note: Note = silent,
    watch: Watch = unseen,
) -> Run:
    """Train on whatever the source gives: in this process, or its folds on an engine; then summary and report."""
    seeds_of(seeds)
    if engine is not None and log is not None:
        raise InputError("--log is for training in this process: leave --jobs and --engine out, or --log")
    if subgroups:  # columns that are missing stop before hours of training
        check_subgroups(spec.cohort, subgroups)
    spec = replace(spec, memory_gb=chosen.training.get("memory_gb", spec.memory_gb))
    rounds = spec.rounds(note)
    if engine is None:
        _train_here(rounds, model, out, chosen, seeds=seeds, log=log, resume=resume, note=note, watch=watch)
        note_in_data(out, given=asdict(chosen))
        return finish(out, rounds, baselines=baselines, recalibrate=recalibrate, subgroups=subgroups, note=note)
    if len(rounds) > 1:
        check_kind(out, len(rounds))
    folders = {k: (fold_folder(out, k), chosen) for k in range(len(rounds))}
    begun = [folder for folder, _ in folders.values() if is_begun(folder)]
    if begun and not resume:
        raise InputError(f"{begun[0]} already holds a run: continue with --resume, or choose another --out")
    train_on_engine(folders, rounds, spec.as_record(), model, out, seeds=seeds, engine=engine, watch=watch)
    note_in_data(out, given=asdict(chosen))
    return finish(out, rounds, baselines=baselines, recalibrate=recalibrate, subgroups=subgroups, note=note)


def finish(
    out: Path,
    rounds: Sequence[Round],
    *,
    folder: Path | None = None,
    baselines: bool = True,
    recalibrate: str | None = None,
    subgroups: Sequence[str] = (),
    note: Note = silent,
) -> Run:
    """The baselines, the summary over folds, if there are any, and the report of a trained run.

    folder: of a single round, where it is not ``out``.
    """
    if len(rounds) > 1:
        write_fold_summary(out, len(rounds))
        folders = [fold_folder(out, number) for number in range(len(rounds))]
    else:
        out = folder or out
        folders = [out]
    note_seen(out, rounds)
    _try("The moments of features", out, note, lambda: note_domain(out, rounds, note))
    if baselines:
        _try("The baselines", out, note, lambda: add_baselines(out, rounds, folders, note))
    _try("The covariates", out, note, lambda: add_covariates(out, rounds, folders, note))
    _try("The maps", out, note, lambda: add_maps(out, rounds))
    if recalibrate:
        _or_say("Not recalibrated", note, lambda: save_recalibration(Run.read(out), recalibrate))
    if subgroups:
        _or_say("No subgroups", note, lambda: keep_subgroups(Run.read(out), subgroups))
    _try("The report", out, note, lambda: write_report(out))
    return Run.read(out)


def _or_say(what: str, note: Note, make: Callable[[], object]) -> None:
    """Do what the finished training can do without; why it cannot be done is said."""
    try:
        make()
    except DasmilError as error:
        note(f"Warning: {what}: {error}")


def _try(what: str, out: Path, note: Note, make: Callable[[], object]) -> None:
    """Do what follows on a finished training; a fault there, which is ours, does not take the training with it."""
    try:
        make()
    except DasmilError:
        raise
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        note(
            f"Warning: {what[0].lower()}{what[1:]} could not be made ({reason}). The training is complete and kept in "
            f"{out}; `dasmil report {out}` makes the page again"
        )


def _train_here(
    rounds: Sequence[Round],
    model: str,
    out: Path,
    chosen: Settings,
    *,
    seeds: int,
    log: str | None = None,
    resume: bool,
    note: Note,
    watch: Watch,
) -> None:
    from dasmil.train.fit import fit
    from dasmil.train.loggers import logged

    if len(rounds) > 1:
        check_kind(out, len(rounds))
    for number, part in enumerate(rounds):
        folder = out if len(rounds) == 1 else fold_folder(out, number)
        with (
            watch("" if len(rounds) == 1 else f"fold {number + 1}/{len(rounds)}  ") as watcher,
            logged(log, folder, {"model": model, **chosen.training}) as told,
        ):
            fit(
                model, part.train, part.val, seeds=seeds, model_options=chosen.options, preset=chosen.preset,
                out=folder, resume=resume, tests=opened_tests(part, folder, note), data=part.data,
                on_epoch=told(watcher.epoch), note=watcher.note, **chosen.training,
            )  # fmt: skip


def study_data(data: Data, **how: Any) -> StudyData:
    """The data that a caller in Python names; anything else is refused."""
    if not isinstance(data, str | CohortSpec):
        found = shown(type(data).__name__)
        raise InputError(
            f"data is {found}, expected a CohortSpec or the name of a built-in data set; bags in memory are for "
            "dasmil.fit and dasmil.cross_validate"
        )
    return StudyData(data=data, **how) if isinstance(data, str) else StudyData(cohort=data, **how)

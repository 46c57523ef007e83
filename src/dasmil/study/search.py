"""Search of settings: trials on the validation bags of every fold, the best trained; a Run comes back."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasmil.errors import InputError
from dasmil.files import read_json, write_json
from dasmil.runs import Run, check_kind, fold_folder, forget_folds, is_begun
from dasmil.study.data import StudyData
from dasmil.study.notes import Note, silent
from dasmil.study.progress import Watch, unseen
from dasmil.study.rounds import Round
from dasmil.study.settings import Settings, gather_settings
from dasmil.study.training import Data, finish, study_data
from dasmil.study.trials import JOURNAL, Journal, Trial, TrialSetup, check_search, search_trials
from dasmil.study.units import made_with, round_arguments, train_grid, train_on_engine
from dasmil.tasks import resolve_task

if TYPE_CHECKING:
    from dasmil.engine import EngineOptions

RECORD = "search.json"
SHOWN_TIES = 5


@dataclass(frozen=True, eq=False)
class SearchOutcome:
    """The run with the chosen settings, and for every round (one, or one per fold) what was chosen and all trials."""

    run: Run
    rounds: list[dict[str, Any]]

    def __repr__(self) -> str:
        lines = [f"SearchOutcome({self.run!r})"]
        for number, part in enumerate(self.rounds):
            title = f"fold {number + 1}/{len(self.rounds)}  " if len(self.rounds) > 1 else ""
            value = "none" if part["score"] is None else f"{part['score']:.4f}"
            tie = f"; {len(part['tied'])} of {len(part['trials'])} settings tie" if len(part["tied"]) > 1 else ""
            lines.append(f"{title}chosen  {_settings_text(part['chosen'])}  score {value}{tie}")
        return "\n".join(lines)


def search(
    data: Data,
    model: str,
    grid: Mapping[str, Sequence[Any]],
    *,
    out: str | Path,
    folds: int | None = None,
    seeds: int = 1,
    search_seeds: int = 1,
    metric: str | None = None,
    split_seed: int = 0,
    recipe: str | None = None,
    preset: str | None = None,
    options: Mapping[str, Any] | None = None,
    engine: EngineOptions | None = None,
    note: Note = silent,
    watch: Watch = unseen,
    **settings: Any,
) -> SearchOutcome:
    """Find settings by their validation score and train with the best, as `dasmil search` does.

    Example: ``dasmil.search(spec, "das-mil", {"lr": [1e-2, 1e-3]}, out="runs/search", folds=5)``

    grid: values of settings of training or options of the model; metric: None is the task's own, of classes the AUROC.
    With folds the search is nested: each fold chooses by its own validation bags. Trials are kept in a journal in
    ``out`` and are not trained again. The rest is as in `train_cohort`.
    """
    spec = study_data(data, recipe=recipe, folds=folds, split_seed=split_seed)
    chosen = gather_settings(model, recipe, preset, settings, options or {}, spec.preset)
    question = TrialSetup(model, search_seeds, metric, chosen.training, chosen.options, chosen.preset)
    return search_study(spec, question, {k: list(v) for k, v in grid.items()}, Path(out), seeds, engine, note, watch)


def search_study(
    spec: StudyData,
    question: TrialSetup,
    grid: dict[str, list[Any]],
    out: Path,
    seeds: int,
    engine: EngineOptions | None = None,
    note: Note = silent,
    watch: Watch = unseen,
    baselines: bool = True,
) -> SearchOutcome:
    """The search over all rounds of a source: in this process, or its parts on an engine."""
    if seeds < 1:
        raise InputError(f"--seeds is {seeds}, expected at least 1")
    rounds, source = spec.rounds(note), spec.as_record()
    folders = [out / name for name in _run_names(len(rounds))]
    _check_folders(out, folders)
    if question.metric is None:
        question = replace(question, metric=resolve_task(None, rounds[0].train).main)
    for part in rounds:
        if part.val is None or not len(part.val):
            raise InputError("there are no validation bags to choose by: use --protocol clean, or give more patients")
        check_search(question, part.train, part.val, grid)
    if engine is not None:
        journals = [Journal(out / JOURNAL, question, part.train, part.val or []) for part in rounds]
        train_grid(journals, grid, question, source, out, engine=engine, watch=watch)
    record: list[dict[str, Any]] = []
    final: dict[int, tuple[Path, Settings]] = {}
    for number, part in enumerate(rounds):
        title = f"fold {number + 1}/{len(rounds)}  " if len(rounds) > 1 else ""
        trials = _ranked(question, part, grid, out, title, note)
        best, shown = trials[0], [{"settings": t.settings, "score": _value(t, question.metric)} for t in trials]
        note(_trial_text(f"{title}chosen", best, question.metric))
        tied = [trial.settings for trial in trials if trial.score == best.score]
        if len(tied) > 1:
            note(_tie_text(title, tied, len(trials), question.metric))
        final[number] = folders[number], _with_best(question, best)
        unit = round_arguments(source, number, question.model, final[number][1], seeds, folders[number])
        mark = made_with(unit, part)
        record.append(
            {"chosen": best.settings, "score": shown[0]["score"], "tied": tied, "trials": shown, "made_with": mark}
        )
    marks = {folder.name: round_["made_with"] for folder, round_ in zip(folders, record, strict=True)}
    _remove_earlier(out, marks, note)
    write_json(out / RECORD, {"metric": f"val_{question.metric}", "grid": grid, "rounds": record})
    if engine is None:
        _train_final(question.model, rounds, final, seeds, watch)
    else:
        train_on_engine(final, rounds, source, question.model, out, seeds=seeds, engine=engine, watch=watch)
    run = finish(out, rounds, folder=folders[0] if len(rounds) == 1 else None, baselines=baselines, note=note)
    return SearchOutcome(run, record)


def _ranked(
    question: TrialSetup, part: Round, grid: dict[str, list[Any]], out: Path, title: str, note: Note
) -> list[Trial]:
    def say(done: int, total: int, trial: Trial) -> None:
        note(_trial_text(f"{title}{done}/{total}", trial, question.metric))

    return search_trials(question, part.train, part.val or [], grid, journal=out / JOURNAL, on_trial=say)


def _with_best(question: TrialSetup, best: Trial) -> Settings:
    from dasmil.train.config import TrainingConfig

    training = {k: v for k, v in best.settings.items() if k in TrainingConfig.model_fields}
    options = {k: v for k, v in best.settings.items() if k not in TrainingConfig.model_fields}
    return Settings({**question.settings, **training}, {**question.options, **options}, question.preset)


def _train_final(
    model: str, rounds: Sequence[Round], final: Mapping[int, tuple[Path, Settings]], seeds: int, watch: Watch
) -> None:
    from dasmil.train.fit import fit

    for number, (folder, chosen) in final.items():
        part = rounds[number]
        with watch("" if len(rounds) == 1 else f"fold {number + 1}/{len(rounds)}  ") as watcher:
            fit(
                model, part.train, part.val, seeds=seeds, model_options=chosen.options, preset=chosen.preset,
                out=folder, resume=True, tests=part.tests, data=part.data, on_epoch=watcher.epoch, note=watcher.note,
                **chosen.training,
            )  # fmt: skip


def _run_names(rounds: int) -> list[str]:
    return ["best"] if rounds == 1 else [fold_folder(Path(), number).name for number in range(rounds)]


def _check_folders(out: Path, folders: list[Path]) -> None:
    """Refuse, before training, to touch runs that are not a search's own."""
    searched = (out / RECORD).exists()
    if len(folders) > 1 and (not searched or is_begun(out)):
        check_kind(out, len(folders))
    for folder in folders:
        if is_begun(folder) and not searched:
            raise InputError(f"{folder} holds a run that no search made: choose another folder with --out")


def _remove_earlier(out: Path, marks: Mapping[str, str], note: Note) -> None:
    """Remove the runs of an earlier search in this folder with other settings or bags, and the summary over them."""
    if not (out / RECORD).exists():
        return
    rounds = read_json(out / RECORD)["rounds"]
    earlier = {name: round_.get("made_with") for name, round_ in zip(_run_names(len(rounds)), rounds, strict=True)}
    if len(rounds) > 1 and earlier != marks:
        forget_folds(out)
    for name, mark in earlier.items():
        if (out / name).exists() and marks.get(name) != mark:
            shutil.rmtree(out / name)
            note(f"Replaced: {out / name}, of an earlier search with other settings or bags")


def _tie_text(title: str, tied: Sequence[Mapping[str, Any]], of: int, metric: str | None) -> str:
    """That validation bags could not choose, and between what."""
    settings = [_settings_text(one) for one in tied[:SHOWN_TIES]]
    more = f"; and {len(tied) - SHOWN_TIES} more" if len(tied) > SHOWN_TIES else ""
    return (
        f"{title}{len(tied)} of {of} settings tie in val {metric}, so the validation bags did not choose between them: "
        f"the first of the grid is taken ({'; '.join(settings)}{more})"
    )


def _trial_text(title: str, trial: Trial, metric: str | None) -> str:
    return f"{title}  {_settings_text(trial.settings)}  val {metric} {_value(trial, metric):.4f}"


def _settings_text(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _value(trial: Trial, metric: str | None) -> float:
    """The metric itself: scores are larger for better trials, so that of a loss is its negative."""
    return -trial.score if metric == "loss" else trial.score

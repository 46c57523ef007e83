"""Grid search that sees validation bags only: trials in a resumable journal, nested in folds when there are any."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dasmil.data.cohort import Cohort
from dasmil.errors import InputError, MissingDependencyError, unknown_name
from dasmil.files import json_hash
from dasmil.models import MODELS
from dasmil.tasks import Task, resolve_task
from dasmil.train.config import TrainingConfig
from dasmil.train.feed import Feed
from dasmil.train.fit import fit_job
from dasmil.train.job import Given, Job, Outline, prepare
from dasmil.types import Bag

JOURNAL = "search.journal"
STACKED = ("lr", "weight_decay")  # runs that differ only in these train together
TOGETHER = 5  # at most so many at once: most of what stacking gains, and work for several workers


@dataclass(frozen=True)
class Trial:
    """One setting of the grid and its mean validation score over the seeds of the search."""

    settings: dict[str, Any]
    score: float


def parse_grid(entries: Sequence[str], model: str) -> dict[str, list[Any]]:
    """ "lr=1e-2,1e-3" and so on as a grid; names are settings of training or options of the model."""
    if model not in MODELS:
        raise unknown_name("model", model, MODELS)
    grid: dict[str, list[Any]] = {}
    options = MODELS[model].schema()
    known = [*TrainingConfig.model_fields, *options]
    for entry in entries:
        name, equals, values = entry.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not all(text.strip() for text in values.split(",")):
            raise InputError(f"--grid {entry}: expected name=value,value,..., for example --grid lr=1e-2,1e-3")
        if name not in known:
            raise unknown_name(f"setting of training or option of {model}", name, known)
        if name in grid:
            raise InputError(f"--grid {name} was given twice: list all its values once")
        found = [_value(text.strip()) for text in values.split(",")]
        if len(set(map(repr, found))) < len(found):
            raise InputError(f"--grid {name}: a value is listed twice, and would be trained twice: list each once")
        grid[name] = found if name not in options else [options[name].check(value) for value in found]
    if not grid:
        raise InputError("nothing to search: give at least one --grid name=value,value")
    return grid


@dataclass(frozen=True)
class TrialSetup:
    """What all trials of a search have in common besides their bags."""

    model: str
    seeds: int = 1
    metric: str | None = "auroc"
    """None: the task's own, of classes the AUROC."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None


def search_trials(
    question: TrialSetup,
    train: Sequence[Bag],
    val: Sequence[Bag],
    grid: Mapping[str, Sequence[Any]],
    *,
    journal: Path,
    on_trial: Callable[[int, int, Trial], None] | None = None,
) -> list[Trial]:
    """Train every setting of the grid and score its kept epoch on the validation bags; best first.

    journal: an optuna journal file; settings that it already holds for these bags and labels are not trained again.
    Settings that differ only in learning rate and weight decay are trained together, a few at a time.
    """
    check_search(question, train, val, grid)
    kept = Journal(journal, question, train, val)
    for together in kept.waiting(grid):
        for trial in train_trials(question, train, val, together):
            kept.note([trial])
            if on_trial:
                trials = kept.ranked(grid)
                on_trial(len(trials), math.prod(map(len, grid.values())), trial)
    return kept.ranked(grid)


def check_search(
    question: TrialSetup, train: Sequence[Bag], val: Sequence[Bag], grid: Mapping[str, Sequence[Any]]
) -> None:
    """Refuse, before anything is trained, a setting that cannot be trained and bags that give no score."""
    if question.seeds < 1:
        raise InputError(f"search seeds are {question.seeds}, expected at least 1")
    outline = _outline(train)
    task = resolve_task(None, train)
    known = ("loss", *task.metrics)
    if question.metric not in known:
        raise InputError(f"--metric {question.metric}: {task.kind} is compared by {', '.join(known)}")
    missing = sorted(set(range(outline.classes)) - set(_labels(val))) if outline.task is None else []
    if question.metric != "loss" and missing:
        raise InputError(
            f"the validation bags have none of class {missing[0]}, so settings cannot be compared by their "
            f"{question.metric}: use --metric loss, or give more validation bags"
        )
    for combination in _combinations(grid):
        try:
            _job(question, outline, combination)
        except InputError:
            raise
        except (TypeError, ValueError) as error:  # a value of another kind than the model takes
            shown = ", ".join(f"{name}={value}" for name, value in combination.items())
            raise InputError(f"{question.model} cannot be made with {shown} ({error}): correct --grid") from None


def _asked(train: Sequence[Bag]) -> Task:
    """What is asked of bags that are no classes, with what the training bags say."""
    assert isinstance(train, Cohort)
    assert train.task is not None
    values = [[math.nan if v is None else v for _, v in entry.targets or ()] for entry in train.entries]
    return train.task.fitted(np.array(values))


def _outline(train: Sequence[Bag]) -> Outline:
    """What a job has to know of the training bags; one of them is read."""
    first = train[0]
    asked = _asked(train).record() if isinstance(train, Cohort) and train.task is not None else None
    classes = _classes(train) if asked is None else 2
    return Outline(len(train), tuple(first.features.shape[1:]), first.unit, classes, asked)


def _labels(bags: Sequence[Bag]) -> list[int]:
    found = bags.labels if isinstance(bags, Cohort) else [bag.label for bag in bags]
    return [label for label in found if label is not None]


def _classes(bags: Sequence[Bag]) -> int:
    return max([2, *(label + 1 for label in _labels(bags))])


def _job(question: TrialSetup, outline: Outline, combination: Mapping[str, Any]) -> Job:
    """The job of a setting of the grid, on top of what all trials share."""
    training = {k: v for k, v in combination.items() if k in TrainingConfig.model_fields}
    own = {k: v for k, v in combination.items() if k not in TrainingConfig.model_fields}
    given = Given(question.preset, {**question.options, **own}, {**question.settings, **training})
    return prepare(question.model, outline, given)


def train_trials(
    question: TrialSetup, train: Sequence[Bag], val: Sequence[Bag], together: Sequence[Mapping[str, Any]]
) -> list[Trial]:
    """Train settings that differ only in learning rate and weight decay, and score them on the validation bags."""
    outline = _outline(train)
    jobs = [_job(question, outline, combination) for combination in together]
    seeds = question.seeds
    specs = [spec for job in jobs for spec in job.specs(seeds)]
    runs = fit_job(jobs[0], train, val, specs)
    parts = [runs[number * seeds : (number + 1) * seeds] for number in range(len(together))]
    kept = [[run.history[run.epoch - 1] for run in part] for part in parts]  # the epoch whose weights are kept
    scores = [float(np.mean([_score(row, question.metric) for row in rows])) for rows in kept]
    return [Trial(dict(combination), score) for combination, score in zip(together, scores, strict=True)]


def _score(row: Mapping[str, float], metric: str | None) -> float:
    value = row[f"val_{metric}"]
    if not np.isfinite(value):
        return float("-inf")
    return -value if metric == "loss" else value


def _combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values)) for values in itertools.product(*grid.values())]


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


class Journal:
    """The finished trials of a search in an optuna journal: one study for every question and its bags.

    One process writes it, however many train; optuna's own lock keeps it whole when two searches share a folder.
    """

    def __init__(self, path: Path, question: TrialSetup, train: Sequence[Bag], val: Sequence[Bag]) -> None:
        try:
            import optuna
            from optuna.storages.journal import JournalFileBackend
        except ImportError:
            raise MissingDependencyError("optuna", "search", "dasmil search") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.seeds = question.seeds
        self.name = _identity(question, train, val)
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        self._study = optuna.create_study(
            study_name=self.name, storage=storage, direction="maximize", load_if_exists=True
        )

    def finished(self) -> dict[str, float]:
        """Scores by setting (as JSON)."""
        from optuna.trial import TrialState

        trials = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return {_key(trial.user_attrs["settings"]): float(trial.value or 0.0) for trial in trials}

    def waiting(self, grid: Mapping[str, Sequence[Any]]) -> list[list[dict[str, Any]]]:
        """Settings that are not finished, in the parts that train together.

        A run does not depend on its company, so a score does not depend on its part.
        """
        done, groups = self.finished(), dict[str, list[dict[str, Any]]]()
        for combination in _combinations(grid):
            if _key(combination) not in done:
                shared = {name: value for name, value in combination.items() if name not in STACKED}
                groups.setdefault(_key(shared), []).append(combination)
        size = max(1, TOGETHER // self.seeds)
        return [group[k : k + size] for group in groups.values() for k in range(0, len(group), size)]

    def note(self, trials: Sequence[Trial]) -> None:
        """Write finished trials; their settings travel as JSON, so any value can be searched."""
        for trial in trials:
            open_trial = self._study.ask()
            open_trial.set_user_attr("settings", trial.settings)
            self._study.tell(open_trial, trial.score)

    def ranked(self, grid: Mapping[str, Sequence[Any]]) -> list[Trial]:
        """The finished trials of a grid, best first, equal ones in the order of the grid."""
        done = self.finished()
        trials = [Trial(c, done[_key(c)]) for c in _combinations(grid) if _key(c) in done]
        return sorted(trials, key=lambda trial: -trial.score)


def bags_state(bags: Sequence[Bag]) -> Any:
    """What changes when bags, their labels or how they are read change; plain values.

    Bags in files: names, labels, size and time of the files, scale and sampling, without reading features. Others: a
    SHA-256 of everything in them.
    """
    if isinstance(bags, Cohort) and all(entry.paths for entry in bags.entries):
        return {
            "bags": [
                [entry.bag_id, entry.label, *([path.stat().st_size, path.stat().st_mtime_ns] for path in entry.paths)]
                for entry in bags.entries
            ],
            **({} if bags.task is None else {"targets": [entry.targets for entry in bags.entries]}),
            "scales": asdict(bags.source.scales), "max_instances": bags.max_instances, "seed": bags.seed,
        }  # fmt: skip
    if not len(bags):
        return None
    return Feed(bags, torch.device("cpu"), memory_gb=0.0, name="given", labelled=False).facts.fingerprint


def _identity(question: TrialSetup, train: Sequence[Bag], val: Sequence[Bag]) -> str:
    """A name for what the trials of a study have in common, so that a changed search does not reuse old scores."""
    common = {
        "model": question.model, "bags": [bags_state(train), bags_state(val)], "seeds": question.seeds,
        "metric": question.metric, "settings": dict(question.settings), "options": dict(question.options),
        "preset": question.preset,
    }  # fmt: skip
    return json_hash(common)[:16]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text

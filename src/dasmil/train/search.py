"""Grid search that sees validation bags only: trials in a resumable journal, nested in folds when there are any."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dasmil.errors import InputError, MissingDependencyError, unknown_name
from dasmil.models import MODELS
from dasmil.train.config import TrainingConfig, config_hash
from dasmil.train.fit import fit
from dasmil.train.loop import RunSpec
from dasmil.types import Bag

Metric = Literal["auroc", "balanced_accuracy", "loss"]
JOURNAL = "search.journal"
STACKED = ("lr", "weight_decay")  # runs that differ only in these train together


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
    known = [*TrainingConfig.model_fields, *MODELS[model].options()]
    for entry in entries:
        name, equals, values = entry.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not values:
            raise InputError(f"--grid {entry}: expected name=value,value,..., for example --grid lr=1e-2,1e-3")
        if name not in known:
            raise unknown_name(f"setting of training or option of {model}", name, known)
        if name in grid:
            raise InputError(f"--grid {name} was given twice: list all its values once")
        grid[name] = [_value(text.strip()) for text in values.split(",")]
    if not grid:
        raise InputError("nothing to search: give at least one --grid name=value,value")
    return grid


def search(
    model: str,
    train: Sequence[Bag],
    val: Sequence[Bag],
    grid: Mapping[str, Sequence[Any]],
    *,
    journal: Path,
    seeds: int = 1,
    metric: Metric = "auroc",
    settings: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    preset: str | None = None,
    on_trial: Callable[[int, int, Trial], None] | None = None,
) -> list[Trial]:
    """Train every setting of the grid and score it on the validation bags; best first.

    journal: an optuna journal file; settings that it already holds are not trained again. Settings that differ only in
    learning rate and weight decay are trained together.
    """
    study = _study(journal, _identity(model, train, val, seeds, metric, settings, options, preset))
    settings, options = dict(settings or {}), dict(options or {})
    combinations = [dict(zip(grid, values)) for values in itertools.product(*grid.values())]
    done = {_key(trial.user_attrs["settings"]): float(trial.value) for trial in _finished(study)}
    trials = [Trial(c, done[_key(c)]) for c in combinations if _key(c) in done]
    waiting = [c for c in combinations if _key(c) not in done]
    for together in _batches(waiting):
        shared = {name: value for name, value in together[0].items() if name not in STACKED}
        training = {**settings, **{k: v for k, v in shared.items() if k in TrainingConfig.model_fields}}
        own = {**options, **{k: v for k, v in shared.items() if k not in TrainingConfig.model_fields}}
        base = TrainingConfig(**{k: v for k, v in training.items() if k in STACKED})
        specs = [
            RunSpec(seed, float(c.get("lr", base.lr)), float(c.get("weight_decay", base.weight_decay)))
            for c in together
            for seed in range(seeds)
        ]
        runs = fit(model, train, val, runs=specs, model_options=own, preset=preset, **training)
        for number, combination in enumerate(together):
            part = runs[number * seeds : (number + 1) * seeds]
            trial = Trial(combination, float(np.mean([_score(run.history[-1], metric) for run in part])))
            _note(study, trial)
            trials.append(trial)
            if on_trial:
                on_trial(len(trials), len(combinations), trial)
    return sorted(trials, key=lambda trial: -trial.score)


def _score(row: Mapping[str, float], metric: Metric) -> float:
    value = row[f"val_{metric}"]
    if not np.isfinite(value):
        return float("-inf")
    return -value if metric == "loss" else value


def _batches(combinations: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for combination in combinations:
        shared = {name: value for name, value in combination.items() if name not in STACKED}
        groups.setdefault(_key(shared), []).append(combination)
    return list(groups.values())


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def _identity(
    model: str,
    train: Sequence[Bag],
    val: Sequence[Bag],
    seeds: int,
    metric: str,
    settings: Mapping[str, Any] | None,
    options: Mapping[str, Any] | None,
    preset: str | None,
) -> str:
    """A name for what the trials of a study have in common, so that a changed search does not reuse old scores."""
    ids = [[str(name) for name in getattr(bags, "bag_ids", None) or [b.bag_id for b in bags]] for bags in (train, val)]
    common = {
        "model": model, "bags": ids, "seeds": seeds, "metric": metric, "settings": dict(settings or {}),
        "options": dict(options or {}), "preset": preset,
    }  # fmt: skip
    return config_hash(common)[:16]


def _study(journal: Path, name: str) -> Any:
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise MissingDependencyError("optuna", "search", "dasmil search") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal.parent.mkdir(parents=True, exist_ok=True)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(journal)))
    return optuna.create_study(study_name=name, storage=storage, direction="maximize", load_if_exists=True)


def _finished(study: Any) -> list[Any]:
    from optuna.trial import TrialState

    return study.get_trials(states=(TrialState.COMPLETE,))


def _note(study: Any, trial: Trial) -> None:
    """Write a finished trial to the journal; its settings travel as JSON, so any value can be searched."""
    open_trial = study.ask()
    open_trial.set_user_attr("settings", trial.settings)
    study.tell(open_trial, trial.score)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text

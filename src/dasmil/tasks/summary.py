"""Scores of several runs on the same bags: what stats/summaries.py draws patients for, from what a task asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.stats.metrics import RESAMPLES
from dasmil.stats.sets import ScoredSet, Scorer
from dasmil.stats.summaries import mean_over_sets, summarise_set
from dasmil.tasks.target import Said
from dasmil.tasks.task import Task

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Told:
    """What is said of bags; the task has the bins and means of its training bags, reference their values, by which
    censoring is undone (None: those of the bags that are scored).
    """

    task: Task
    said: Said
    reference: Array | None = None


def task_sets(
    values: Array, runs: Sequence[Told], patients: Sequence[str], ensemble: Told | None = None
) -> dict[str, ScoredSet]:
    """Bags with values [n, columns] and what scores each run on them, by what stands before a metric's name.

    One target has "" alone, several "er." and so on, and under "" their macro mean.
    """
    task = runs[0].task
    strata = task.strata(values)

    def scored(metrics: Callable[[Told], Scorer], *limits: Any) -> ScoredSet:
        whole = None if ensemble is None else metrics(ensemble)
        fewest, classes, by_metric = limits
        return ScoredSet([metrics(run) for run in runs], strata, patients, fewest, whole, classes, by_metric)

    if len(task.targets) == 1:
        return {"": scored(lambda told: _every(told, values), *_limits(task, 0, values, patients))}
    found = {
        f"{target.name}.": scored(lambda told, k=k: _of_target(told, k, values), *_limits(task, k, values, patients))
        for k, target in enumerate(task.targets)
    }
    least = min(one.fewest for one in found.values())
    return {"": scored(lambda told: lambda w: {"macro": _every(told, values)(w)["macro"]}, least, None, {}), **found}


def _every(told: Told, values: Array) -> Scorer:
    return lambda weights: told.task.figures(values, told.said, weights, told.reference)


def _of_target(told: Told, number: int, values: Array) -> Scorer:
    target, own, _ = list(told.task.parts())[number]
    said = told.task.said_of(target, told.said)
    return lambda weights: target.figures_of_several(values[:, own], said, weights)


def _limits(
    task: Task, number: int, values: Array, patients: Sequence[str]
) -> tuple[int, NDArray[np.int64] | None, Mapping[str, int]]:
    """Patients of the kind that limits what can be said of a target, of classes those of each, and by metric."""
    target, own, _ = list(task.parts())[number]
    return *target.patients(values[:, own], patients), target.patients_of_metrics(values[:, own], patients)


def summarise_task(
    values: Array,
    runs: Sequence[Told],
    patients: Sequence[str],
    ensemble: Told | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """As ``stats.summarise_set``, with every metric of every target under its full name ("er.auroc")."""
    sets = task_sets(values, runs, patients, ensemble)
    parts = {prefix: summarise_set(one, resamples=resamples, seed=seed) for prefix, one in sets.items()}
    whole = next(iter(parts.values()))
    found = {
        "n": whole["n"], "patients": whole["patients"], "fewest": whole["fewest"],
        **runs[0].task.describe(values),
        "per_seed": [_joined({p: part["per_seed"][k] for p, part in parts.items()}) for k in range(len(runs))],
        **{name: _joined({p: part[name] for p, part in parts.items()}) for name in ("mean", "std", "interval")},
    }  # fmt: skip
    if ensemble is not None:
        together = {p: {k: v for k, v in part["ensemble"].items() if k != "interval"} for p, part in parts.items()}
        spans = {p: part["ensemble"]["interval"] for p, part in parts.items()}
        found["ensemble"] = {**_joined(together), "interval": _joined(spans)}
    task = runs[0].task
    together = task.mean_of([run.said for run in runs]) if task.alone is not None else {}
    return found if task.alone is None else {**found, **task.alone.curves(values, together, patients)}


def summarise_outputs(
    task: Task, values: Array, outputs: Sequence[Array], patients: Sequence[str], reference: Array | None = None
) -> dict[str, Any]:
    """The summary of seeds of one run, outputs [n, outputs] each; the ensemble is the mean of what they say."""
    together = Told(task, task.joined(outputs), reference)
    return summarise_task(values, [Told(task, task.said(out), reference) for out in outputs], patients, together)


def mean_over_folds(folds: Sequence[Mapping[str, ScoredSet]]) -> dict[str, dict[str, Any]]:
    """As ``stats.mean_over_sets``: of every metric the mean over folds, and its interval."""
    parts = {prefix: mean_over_sets([fold[prefix] for fold in folds]) for prefix in folds[0]}
    return {name: _joined({p: part[name] for p, part in parts.items()}) for name in ("mean", "interval")}


def _joined(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{prefix}{name}": value for prefix, part in parts.items() for name, value in part.items()}

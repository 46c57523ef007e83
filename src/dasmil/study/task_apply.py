"""A finished run whose task is no class at work: scores on bags with known values, answers for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dasmil.runs import Run
from dasmil.tasks import Task, Told, summarise_outputs, summarise_task
from dasmil.train.evaluate import model_outputs
from dasmil.train.feed import Feed
from dasmil.train.results import feed_rows
from dasmil.types import Bag

MEMORY_GB = 1.0


def predict_task(run: Run, bags: Sequence[Bag]) -> list[dict[str, Any]]:
    """One row a bag: bag_id, what the models say together in the unit of each target, and how far they differ.

    Survival: risk, its deviation over the models (risk_sd; None of one), and with hazards the probability to live past
    every time at which figures are given. A number: itself and its deviation. Classes: probability and class number.
    """
    feed = Feed(bags, torch.device("cpu"), memory_gb=MEMORY_GB, name="given", labelled=False)
    told: list[dict[str, NDArray[np.float64]]] = []
    for part in run.parts:  # every fold has its own bins and its own mean
        task = part.asked
        told += [task.shared(outputs) for outputs in model_outputs(part.models(), feed)]
    mean, spread = run.asked.mean_of(told), {}
    for name in _first_names(run.asked):
        values = np.stack([one[name] for one in told])
        spread[f"{name}_sd"] = values.std(0, ddof=1) if len(told) > 1 else None
    return [
        {
            "bag_id": bag_id,
            **{name: float(values[i]) for name, values in mean.items()},
            **{name: None if values is None else float(values[i]) for name, values in spread.items()},
        }
        for i, bag_id in enumerate(feed.facts.ids)
    ]


def evaluate_task(run: Run, sets: Mapping[str, Sequence[Bag]], *, keep: bool = False) -> dict[str, Any]:
    """Scores of a run's models on sets with known values, in the layout of a run's summary.

    The models of a cross-validation are scored on the same draws of patients, each with its own bins of time. keep:
    also put scores and predictions into the run directory (not of a cross-validation).
    """
    splits, described, rows = {}, {}, [[] for _ in run.all_seeds]
    for name, bags in sets.items():
        feed = Feed(bags, torch.device("cpu"), memory_gb=MEMORY_GB, name=name, task=run.asked)
        facts, told = feed.facts, []
        for part in run.parts:
            task, outputs = part.asked, model_outputs(part.models(), feed)
            reference = part.answers("train")[0].values
            for one in outputs:
                rows[len(told)] += feed_rows(name, feed, one, task)
                told.append(Told(task, task.said(one), reference))
            if len(run.parts) == 1:
                splits[name] = summarise_outputs(task, facts.targets, list(outputs), facts.patients, reference)
        if len(run.parts) > 1:
            splits[name] = summarise_task(facts.targets, told, facts.patients)
        described[name] = facts.describe()
    if keep and not run.folds:
        run.add_scored(splits, described, rows)
    summary = run.summary
    return {
        "task": summary.get("task"),
        "splits": splits,
        **({"folds": len(run.folds), "models": len(rows)} if run.folds else {}),
        "seeds": list(run.seeds) or list(range(len(rows))),
        "stuck_seeds": summary["stuck_seeds"],
        "selection": summary["selection"],
    }


def _first_names(task: Task) -> list[str]:
    """The name of the first thing that each target says."""
    return [next(iter(target.said(np.zeros((1, target.outputs))))) for target in task.targets]

"""What a finished run leaves when its task is no class: predictions in their unit, and their scores over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dasmil.runs import RunWriter
from dasmil.tasks import Task, summarise_outputs
from dasmil.train.evaluate import model_logits
from dasmil.train.feed import Feed
from dasmil.train.results import seed_status

if TYPE_CHECKING:
    from dasmil.train.trained import TrainedRun

Array = NDArray[np.float64]


def write_task_results(
    writer: RunWriter, runs: Sequence[TrainedRun], sets: Mapping[str, Feed], task: Task
) -> dict[str, Any]:
    """Write what every seed leaves and the summary, and describe the sets; returns the summary."""
    scored = writer.scored_before(but=sets)
    outputs = {name: task_outputs([run.model for run in runs], feed) for name, feed in sets.items()}
    for k, run in enumerate(runs):
        rows = [row for name, feed in sets.items() for row in task_rows(name, feed, outputs[name][k], task)]
        writer.write_seed(run.seed, run.model, run.history, rows, seed_status(run), kept=scored)
    reference = sets["train"].facts.targets
    splits = {
        name: summarise_outputs(task, feed.facts.targets, list(outputs[name]), feed.facts.patients, reference)
        for name, feed in sets.items()
    }
    summary = {
        "task": task.kind,
        "splits": {**splits, **scored},
        "stuck_seeds": [run.seed for run in runs if not run.fitted],
        "chance_seeds": [],
        "unproven_seeds": [run.seed for run in runs if run.fitted and "val" not in sets and not run.proven],
        "selection": writer.config["training"]["selection"],
        "seeds": [run.seed for run in runs],
        "threshold": {"chosen_on": "none"},
    }
    writer.finish(summary, {name: feed.facts.describe() for name, feed in sets.items()})
    return summary


def task_outputs(models: Sequence[Any], feed: Feed) -> Array:
    """Outputs of models [models, bags, outputs]."""
    logits = model_logits(models, feed)
    return logits.reshape(*logits.shape[:2], -1)


def task_rows(split: str, feed: Feed, outputs: Array, task: Task) -> list[dict[str, Any]]:
    """One row a bag: bag_id, split, the true values, outputs of the model, what they mean, patient_id."""
    said = task.said(outputs)
    rows = []
    for i, bag_id in enumerate(feed.facts.ids):
        row: dict[str, Any] = {"bag_id": bag_id, "split": split}
        row |= {f"true_{c}": _cell(v) for c, v in zip(task.columns, feed.facts.targets[i], strict=True)}
        row |= {f"output_{k}": float(v) for k, v in enumerate(outputs[i])}
        row |= {name: float(values[i]) for name, values in said.items()}
        rows.append({**row, "patient_id": feed.facts.patient_ids[i]})
    return rows


def _cell(value: float) -> float | str:
    return float(value) if np.isfinite(value) else ""

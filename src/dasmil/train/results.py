"""What a finished run leaves: weights, curves, predictions, and their summary over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dasmil.runs import RunWriter, SeedStatus, prediction_rows
from dasmil.tasks import Task, summarise_outputs
from dasmil.train.evaluate import model_outputs
from dasmil.train.feed import Feed

if TYPE_CHECKING:
    from dasmil.train.trained import TrainedRun

Array = NDArray[np.float64]


def write_results(
    writer: RunWriter,
    runs: Sequence[TrainedRun],
    sets: Mapping[str, Feed],
    known: Mapping[str, Array] | None = None,
) -> dict[str, Any]:
    """Write what every seed leaves and the summary, and describe the sets; returns the summary.

    known: outputs [seeds, bags, outputs] of sets that are not what the final models give (out-of-fold ones).

    A finished run that is resumed keeps what was scored since: its weights are the same. A threshold is chosen from the
    validation bags alone, and every set is scored at it.
    """
    scored = writer.scored_before(but=sets)
    known = known or {}
    outputs = {
        name: known[name] if name in known else model_outputs([run.model for run in runs], feed)
        for name, feed in sets.items()
    }
    task, threshold = _decided(sets, outputs)
    for k, run in enumerate(runs):
        rows = [row for name, feed in sets.items() for row in feed_rows(name, feed, outputs[name][k], task)]
        writer.write_seed(run.seed, run.model, run.history, rows, seed_status(run), kept=scored)
    reference = sets["train"].facts.targets
    splits = {
        name: summarise_outputs(task, feed.facts.targets, list(outputs[name]), feed.facts.patients, reference)
        for name, feed in sets.items()
    }
    summary = {
        **({} if task.labels is not None else {"task": task.kind}),
        "splits": {**splits, **scored},
        "threshold": threshold,
        "stuck_seeds": [run.seed for run in runs if not run.fitted],
        "chance_seeds": _at_chance(runs, task, sets, outputs),
        "unproven_seeds": [run.seed for run in runs if run.fitted and "val" not in sets and not run.proven],
        "selection": writer.config["training"]["selection"],
        "seeds": [run.seed for run in runs],
    }
    writer.finish(summary, {name: feed.facts.describe() for name, feed in sets.items()})
    return summary


def feed_rows(split: str, feed: Feed, outputs: Array, task: Task) -> list[dict[str, Any]]:
    """One row a bag, as predictions.csv has it."""
    facts = feed.facts
    return prediction_rows(task, split, facts.ids, facts.patient_ids, facts.targets, outputs)


def _decided(sets: Mapping[str, Feed], outputs: Mapping[str, Array]) -> tuple[Task, dict[str, Any]]:
    """The task with its threshold, and what the summary notes of that."""
    task = sets["train"].facts.task
    if task.labels is None:
        return task, {"chosen_on": "none"}
    chosen = task.decided(sets["val"].facts.targets, list(outputs["val"])) if "val" in sets else task
    assert chosen.labels is not None
    origin = "fixed" if chosen.labels is task.labels else "val"
    return chosen, {"decision": chosen.labels.threshold, "chosen_on": origin}


def _at_chance(
    runs: Sequence[TrainedRun], task: Task, sets: Mapping[str, Feed], outputs: Mapping[str, Array]
) -> list[int]:
    """Seeds that fitted their training bags, but whose AUROC on validation bags has an interval that reaches 0.5.

    Too few validation bags have no interval and accuse nobody.
    """
    if "val" not in sets or task.labels is None:
        return []
    facts = sets["val"].facts
    each = [summarise_outputs(task, facts.targets, [one], facts.patients) for one in outputs["val"]]
    lows = [found["interval"]["auroc"][0] for found in each]
    return [run.seed for run, low in zip(runs, lows, strict=True) if run.fitted and low <= 0.5]


def seed_status(run: TrainedRun) -> SeedStatus:
    """How a seed ended, as status.json has it."""
    status: Any = {
        "seed": run.seed,
        "lr": run.lr,
        "fitted": run.fitted,
        "reason": run.reason,
        "held_out_evidence": run.proven,
        "train_loss": run.train_loss,
        "epoch": run.epoch,
        "restarts": len(run.attempts) - 1,
        "attempt": run.attempts[0].attempt,
        "attempts": [
            {
                "attempt": a.attempt,
                "train_loss": a.train_loss,
                "fitted": a.fitted,
                "epoch": a.epoch,
                "theta_init": a.options.get("theta_init"),
                "beta_init": a.options.get("beta_init"),
                "start": a.start,
                "held_out": a.held_out,
                "preferred_to": a.rivals,
            }
            for a in sorted(run.attempts, key=lambda a: a.attempt)
        ],
        "learned_distances": run.model.learned_distances(),
        "learned_biases": run.model.learned_biases(),
        **({"library": run.library} if run.library else {}),
    }
    return status

"""What a finished run leaves: weights, curves, predictions, and their summary over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dasmil.runs import RunWriter, SeedStatus
from dasmil.stats import choose_threshold, probabilities, summarise
from dasmil.train.evaluate import model_logits
from dasmil.train.feed import Feed

if TYPE_CHECKING:
    from dasmil.train.trained import TrainedRun


def write_results(
    writer: RunWriter, runs: Sequence[TrainedRun], sets: Mapping[str, Feed], classes: int
) -> dict[str, Any]:
    """Write what every seed leaves and the summary, and describe the sets; returns the summary.

    A finished run that is resumed keeps what was scored since: its weights are the same.
    """
    scored = writer.scored_before(but=sets)
    logits = {name: model_logits([run.model for run in runs], feed) for name, feed in sets.items()}
    summary = summarise_sets(sets, logits, classes)
    threshold = summary["threshold"]["decision"]
    for k, run in enumerate(runs):
        rows = [
            row
            for name, feed in sets.items()
            for row in prediction_rows(name, feed, logits[name][k], classes, threshold)
        ]
        writer.write_seed(run.seed, run.model, run.history, rows, seed_status(run), kept=scored)
    summary["splits"] |= scored
    summary["stuck_seeds"] = [run.seed for run in runs if not run.fitted]
    summary["chance_seeds"] = _at_chance(runs, sets, logits, classes)
    summary["unproven_seeds"] = [run.seed for run in runs if run.fitted and "val" not in sets and not run.proven]
    summary["selection"] = writer.config["training"]["selection"]
    summary["seeds"] = [run.seed for run in runs]
    writer.finish(summary, {name: feed.facts.describe() for name, feed in sets.items()})
    return summary


def summarise_sets(sets: Mapping[str, Feed], logits: Mapping[str, NDArray[np.float64]], classes: int) -> dict[str, Any]:
    """One threshold from the validation bags alone, and the scores of every set at it."""
    probability = {name: probabilities(value, classes) for name, value in logits.items()}
    count = len(next(iter(logits.values())))
    decision, origin = 0.5, "fixed"
    labels = sets["val"].facts.labels if "val" in sets else []
    if classes == 2 and len(set(labels)) == 2:  # bags of one class leave nothing to choose
        decision, origin = choose_threshold(labels, probability["val"].mean(0)), "val"
    splits = {
        name: summarise(
            feed.facts.labels,
            list(probability[name]),
            [decision] * count,
            patients=feed.facts.patients,
            ensemble_threshold=decision,
        )
        for name, feed in sets.items()
    }
    return {"splits": splits, "threshold": {"decision": decision, "chosen_on": origin}}


def _at_chance(
    runs: Sequence[TrainedRun], sets: Mapping[str, Feed], logits: Mapping[str, NDArray[np.float64]], classes: int
) -> list[int]:
    """Seeds that fitted their training bags, but whose AUROC on validation bags has an interval that reaches 0.5.

    Too few validation bags have no interval and accuse nobody.
    """
    if "val" not in sets:
        return []
    facts = sets["val"].facts
    found = []
    for run, probability in zip(runs, probabilities(logits["val"], classes), strict=True):
        low, _ = summarise(facts.labels, [probability], [0.5], patients=facts.patients)["interval"]["auroc"]
        if run.fitted and low <= 0.5:
            found.append(run.seed)
    return found


def prediction_rows(
    split: str, feed: Feed, logits: NDArray[np.float64], classes: int, threshold: float
) -> list[dict[str, Any]]:
    """One row a bag: bag_id, split, label, logit (or one per class), probability, prediction, patient_id."""
    probability = probabilities(logits, classes)
    rows = []
    for i, bag_id in enumerate(feed.facts.ids):
        row: dict[str, Any] = {"bag_id": bag_id, "split": split, "label": int(feed.facts.labels[i])}
        if classes == 2:
            row |= {"logit": float(logits[i]), "probability": float(probability[i])}
            row["prediction"] = int(probability[i] >= threshold)
        else:
            row |= {f"logit_{c}": float(v) for c, v in enumerate(logits[i])}
            row |= {f"probability_{c}": float(v) for c, v in enumerate(probability[i])}
            row["probability"] = float(probability[i].max())
            row["prediction"] = int(probability[i].argmax())
        row["patient_id"] = feed.facts.patient_ids[i]
        rows.append(row)
    return rows


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
    }
    return status

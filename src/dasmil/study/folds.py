"""Cross-validation: the summary over its folds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.runs import Predictions, Run, fold_folder, write_fold_summary_file
from dasmil.stats import METRICS, calibration_curve, mean_interval
from dasmil.study.task_folds import write_task_summary


@dataclass(frozen=True, eq=False)
class ScoredRun:
    """A split of one fold: labels [n], probabilities per run [n] or [n, classes], patients [n], bags [n]."""

    labels: NDArray[np.int64]
    probabilities: list[NDArray[np.float64]]
    patients: list[str]
    bag_ids: list[str]

    @classmethod
    def of(cls, per_run: Sequence[Predictions]) -> ScoredRun:
        """What several runs say about the same bags."""
        first = per_run[0]
        return cls(first.labels, [p.probabilities for p in per_run], first.patients, first.bag_ids)


def write_fold_summary(path: Path, folds: int) -> dict[str, Any]:
    """The summary over all folds: per split the mean over folds, their deviation, and an interval of the mean.

    Folds share their training bags: these are counted once and have no interval.
    """
    runs = [Run.read(fold_folder(path, k)) for k in range(folds)]
    if runs[0].task is not None:
        return write_task_summary(path, runs)
    summaries = [run.summary for run in runs]
    splits = {
        name: over_folds(
            [s["splits"][name] for s in summaries],
            [ScoredRun.of([seed.predictions(name) for seed in run.seeds.values()]) for run in runs],
            [run.thresholds for run in runs],
        )
        for name in summaries[0]["splits"]
    }
    summary = {
        "folds": folds,
        "splits": splits,
        "seeds": summaries[0]["seeds"],
        **{
            name: [f"fold {k} seed {seed}" for k, s in enumerate(summaries) for seed in s.get(name, [])]
            for name in ("stuck_seeds", "chance_seeds")
        },
        "selection": summaries[0]["selection"],
        "threshold": {
            "decision": float(np.mean([run.threshold for run in runs])),
            "chosen_on": summaries[0]["threshold"]["chosen_on"],
        },
    }
    write_fold_summary_file(path, summary)
    return summary


def over_folds(
    per_fold: Sequence[Mapping[str, Any]], parts: Sequence[ScoredRun], thresholds: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """The scores of a split over folds, from those of each fold, its predictions and its thresholds."""
    means = [{m: _number(fold["mean"][m]) for m in METRICS} for fold in per_fold]
    # A fold whose bags are all of one class has no AUROC and is left out.
    values = {m: [row[m] for row in means if math.isfinite(row[m])] for m in METRICS}
    label_of = {bag: y for part in parts for bag, y in zip(part.bag_ids, part.labels, strict=True)}
    owners = [set(part.patients) for part in parts]
    shared = len(set.union(*owners)) < sum(map(len, owners))
    interval = mean_interval(
        [(part.labels, part.probabilities, t, part.patients) for part, t in zip(parts, thresholds, strict=True)]
    )
    return {
        "n": len(label_of),
        "patients": len(set.union(*owners)),
        "fewest": sum(fold.get("fewest", 0) for fold in per_fold),
        "positives": sum(int(y == 1) for y in label_of.values()),
        "shared_by_folds": shared,
        "per_fold": means,
        "mean": {m: float(np.mean(v)) if v else math.nan for m, v in values.items()},
        "std": {m: float(np.std(v, ddof=1)) if len(v) > 1 else math.nan for m, v in values.items()},
        # It draws patients fold by fold: of those who are in several folds it would be too narrow.
        "interval": {m: [math.nan, math.nan] if shared else found for m, found in interval.items()},
        # The folds' bags together, each with the mean probability of the runs of its fold.
        "calibration": calibration_curve(
            np.concatenate([part.labels for part in parts]),
            np.concatenate([np.mean(part.probabilities, axis=0) for part in parts]),
            [patient for part in parts for patient in part.patients],
        ),
    }


def _number(value: float | None) -> float:
    return math.nan if value is None else value

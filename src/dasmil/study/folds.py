"""Cross-validation: the summary over its folds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.runs import Run, fold_folder, write_fold_summary_file
from dasmil.stats import METRICS, calibration_curve, mean_interval


def write_fold_summary(path: Path, folds: int) -> dict[str, Any]:
    """The summary over all folds: per split the mean over folds, their deviation, and an interval of the mean.

    Folds share their training bags: these are counted once and have no interval.
    """
    runs = [Run.read(fold_folder(path, k)) for k in range(folds)]
    summaries = [run.summary for run in runs]
    splits: dict[str, Any] = {}
    for name in summaries[0]["splits"]:
        per_fold = [s["splits"][name] for s in summaries]
        means = [{m: _number(fold["mean"][m]) for m in METRICS} for fold in per_fold]
        # A fold whose bags are all of one class has no AUROC and is left out.
        values = {m: [row[m] for row in means if math.isfinite(row[m])] for m in METRICS}
        predictions = [_scored(run, name) for run in runs]
        thresholds = [run.thresholds for run in runs]
        label_of = {bag: y for labels, _, _, ids in predictions for bag, y in zip(ids, labels, strict=True)}
        owners = [set(patients) for _, _, patients, _ in predictions]
        shared = len(set.union(*owners)) < sum(map(len, owners))
        interval = mean_interval(
            [(y, p, t, patients) for (y, p, patients, _), t in zip(predictions, thresholds, strict=True)]
        )
        splits[name] = {
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
            # The folds' bags together, each with the mean probability of the seeds of its fold.
            "calibration": calibration_curve(
                np.concatenate([y for y, _, _, _ in predictions]),
                np.concatenate([np.mean(p, axis=0) for _, p, _, _ in predictions]),
                [patient for _, _, patients, _ in predictions for patient in patients],
            ),
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


def _scored(run: Run, split: str) -> tuple[NDArray[np.int64], list[NDArray[np.float64]], list[str], list[str]]:
    """Labels [n] of a split, probabilities per seed [n] or [n, classes], patients [n], bags [n]."""
    per_seed = [seed.predictions(split) for seed in run.seeds.values()]
    return per_seed[0].labels, [p.probabilities for p in per_seed], per_seed[0].patients, per_seed[0].bag_ids


def _number(value: float | None) -> float:
    return math.nan if value is None else value

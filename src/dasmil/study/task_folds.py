"""Cross-validation of a task that is no class: the summary over its folds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dasmil.runs import Answers, Run, write_fold_summary_file
from dasmil.stats.resample import interval, resampled
from dasmil.tasks import Task

RESAMPLES = 1000


def write_task_summary(path: Path, runs: Sequence[Run]) -> dict[str, Any]:
    """Per split the mean over folds, their deviation, and an interval of the mean from patients drawn within folds."""
    summaries = [run.summary for run in runs]
    summary = {
        "folds": len(runs),
        "task": summaries[0].get("task"),
        "splits": {name: _over_folds(runs, name) for name in summaries[0]["splits"]},
        "seeds": summaries[0]["seeds"],
        "stuck_seeds": [f"fold {k} seed {seed}" for k, s in enumerate(summaries) for seed in s["stuck_seeds"]],
        "chance_seeds": [],
        "selection": summaries[0]["selection"],
        "threshold": {"chosen_on": "none"},
    }
    write_fold_summary_file(path, summary)
    return summary


def _over_folds(runs: Sequence[Run], split: str) -> dict[str, Any]:
    per_fold = [run.summary["splits"][split]["mean"] for run in runs]
    names = [name for name in per_fold[0] if all(name in fold for fold in per_fold)]  # horizons differ between folds
    values = {name: [float(v) for fold in per_fold if (v := fold[name]) is not None] for name in names}
    finite = {name: [v for v in found if math.isfinite(v)] for name, found in values.items()}
    parts = [run.answers(split) for run in runs]
    owners = [set(found[0].patients) for found in parts]
    everyone = set.union(*owners)
    shared = len(everyone) < sum(map(len, owners))
    draws = None if shared else _draws(runs, parts, names)
    return {
        "n": len({bag for found in parts for bag in found[0].bag_ids}),
        "patients": len(everyone),
        "shared_by_folds": shared,
        "per_fold": per_fold,
        "mean": {name: float(np.mean(v)) if v else math.nan for name, v in finite.items()},
        "std": {name: float(np.std(v, ddof=1)) if len(v) > 1 else math.nan for name, v in finite.items()},
        "interval": {
            name: [math.nan, math.nan] if draws is None else interval(_mean_over_folds(draws[name])) for name in names
        },
    }


def _mean_over_folds(draws: np.ndarray) -> np.ndarray:
    """Of [folds, draws]; a draw that no fold can score is NaN."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
        return np.nanmean(draws, axis=0)


def _draws(runs: Sequence[Run], parts: Sequence[Sequence[Answers]], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Every metric of every fold under resamples of its patients [folds, draws], mean over seeds."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for k, (run, seeds) in enumerate(zip(runs, parts, strict=True)):
        task = run.task
        assert isinstance(task, Task)
        reference = run.answers("train")[0].values
        first = seeds[0]
        weights = np.concatenate(list(resampled(task.strata(first.values), first.patients, RESAMPLES, k)))
        each = [task.figures(seed.values, task.said(seed.outputs), weights, reference) for seed in seeds]
        for name in names:
            found[name].append(np.mean([one[name] for one in each], axis=0))
    return {name: np.stack(rows) for name, rows in found.items()}

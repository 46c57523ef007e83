"""Cross-validation of a task that is no class: the summary over its folds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dasmil.runs import Answers, Run, write_fold_summary_file
from dasmil.stats.sets import ScoredSet
from dasmil.tasks import Task, Told, mean_over_folds, task_sets


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
    known = {} if shared else mean_over_folds([_scored(*fold) for fold in zip(runs, parts, strict=True)])["interval"]
    return {
        "n": len({bag for found in parts for bag in found[0].bag_ids}),
        "patients": len(everyone),
        "shared_by_folds": shared,
        "per_fold": per_fold,
        "mean": {name: float(np.mean(v)) if v else math.nan for name, v in finite.items()},
        "std": {name: float(np.std(v, ddof=1)) if len(v) > 1 else math.nan for name, v in finite.items()},
        "interval": {name: known.get(name, [math.nan, math.nan]) for name in names},
    }


def _scored(run: Run, seeds: Sequence[Answers]) -> dict[str, ScoredSet]:
    """The bags of a fold with what its seeds said of them."""
    task = run.task
    assert isinstance(task, Task)
    reference = run.answers("train")[0].values
    told = [Told(task, task.said(seed.outputs), reference) for seed in seeds]
    return task_sets(seeds[0].values, told, seeds[0].patients)

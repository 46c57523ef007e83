"""Cross-validation of a task that is no class: the summary over its folds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.runs import Answers, Run, write_fold_summary_file
from dasmil.stats.sets import ScoredSet
from dasmil.tasks import Task, Told, mean_over_folds, task_sets

Array = NDArray[np.float64]


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
    return answers_over_folds(per_fold, [FoldAnswers.of(run, run.answers(split)) for run in runs])


@dataclass(frozen=True, eq=False)
class FoldAnswers:
    """Predictions of every seed (or a baseline) for the bags of a fold; reference: the values of its training bags."""

    task: Task
    reference: Array
    seeds: Sequence[Answers]

    @staticmethod
    def of(run: Run, seeds: Sequence[Answers]) -> FoldAnswers:
        return FoldAnswers(run.asked, run.answers("train")[0].values, seeds)

    def scored(self) -> dict[str, ScoredSet]:
        """The bags with what scores them."""
        told = [Told(self.task, self.task.said(seed.outputs), self.reference) for seed in self.seeds]
        return task_sets(self.seeds[0].values, told, self.seeds[0].patients)


def answers_over_folds(per_fold: Sequence[Mapping[str, Any]], folds: Sequence[FoldAnswers]) -> dict[str, Any]:
    """Scores of one split over all folds; per_fold: the mean scores of each."""
    names = [name for name in per_fold[0] if all(name in fold for fold in per_fold)]  # horizons differ between folds
    values = {name: [float(v) for fold in per_fold if (v := fold[name]) is not None] for name in names}
    finite = {name: [v for v in found if math.isfinite(v)] for name, found in values.items()}
    owners = [set(fold.seeds[0].patients) for fold in folds]
    everyone = set.union(*owners)
    shared = len(everyone) < sum(map(len, owners))
    known = {} if shared else mean_over_folds([fold.scored() for fold in folds])["interval"]
    return {
        "n": len({bag for fold in folds for bag in fold.seeds[0].bag_ids}),
        "patients": len(everyone),
        "shared_by_folds": shared,
        "per_fold": list(per_fold),
        "mean": {name: float(np.mean(v)) if v else math.nan for name, v in finite.items()},
        "std": {name: float(np.std(v, ddof=1)) if len(v) > 1 else math.nan for name, v in finite.items()},
        "interval": {name: known.get(name, [math.nan, math.nan]) for name in names},
    }

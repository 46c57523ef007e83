"""Scores of several runs on the same bags, with intervals from resamples of patients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.stats.resample import interval, resampled
from dasmil.tasks.task import Task

Array = NDArray[np.float64]
RESAMPLES = 1000


def summarise_task(
    task: Task,
    values: Array,
    outputs: Sequence[Array],
    patients: Sequence[str],
    reference: Array | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """Per run, mean, standard deviation, interval of the mean over patients, and the same of the ensemble.

    values [n, columns]; outputs: of every run [n, outputs]; reference: values of the training bags, by which censoring
    is undone. The ensemble is the mean of what the runs say.
    """
    per_run = [task.figures(values, task.said(out), reference=reference) for out in outputs]
    weights = np.concatenate(list(resampled(task.strata(values), patients, resamples, seed)))
    draws = [task.figures(values, task.said(out), weights, reference) for out in outputs]
    together = task.joined(outputs)
    ensemble = task.figures(values, together, reference=reference)
    ensemble_draws = task.figures(values, together, weights, reference)
    names = list(per_run[0])
    table = {name: np.array([float(run[name][0]) for run in per_run]) for name in names}
    return {
        "n": len(values),
        "patients": len(set(patients)),
        **task.describe(values),
        "per_seed": [{name: float(run[name][0]) for name in names} for run in per_run],
        "mean": {name: float(v.mean()) for name, v in table.items()},
        "std": {name: float(v.std(ddof=1)) if len(v) > 1 else 0.0 for name, v in table.items()},
        "interval": {name: interval(np.mean([d[name] for d in draws], axis=0)) for name in names},
        "ensemble": {
            **{name: float(v[0]) for name, v in ensemble.items()},
            "interval": {name: interval(v) for name, v in ensemble_draws.items()},
        },
    }

"""Cross-validation: the summary over fold-K/ folders of one run directory."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.errors import DataError
from dasmil.files import write_json
from dasmil.stats import METRICS, calibration_curve, mean_interval
from dasmil.train.run_dir import read_json


def write_fold_summary(path: Path, folds: int) -> dict[str, Any]:
    """summary.json over all folds: per split the mean over folds, their deviation, and an interval of the mean.

    Folds share their training bags: these are counted once and have no interval.
    """
    summaries = [read_json(path / f"fold-{k}" / "summary.json") for k in range(folds)]
    splits: dict[str, Any] = {}
    for name in summaries[0]["splits"]:
        per_fold = [s["splits"][name] for s in summaries]
        means = [{m: _number(fold["mean"][m]) for m in METRICS} for fold in per_fold]
        # A fold whose bags are all of one class has no AUROC and is left out.
        values = {m: [row[m] for row in means if math.isfinite(row[m])] for m in METRICS}
        predictions = [read_predictions(path / f"fold-{k}", name) for k in range(folds)]
        thresholds = [s["threshold"]["per_seed"] for s in summaries]
        label_of = {bag: y for labels, _, _, ids in predictions for bag, y in zip(ids, labels, strict=True)}
        owners = [set(patients) for _, _, patients, _ in predictions]
        shared = len(set.union(*owners)) < sum(map(len, owners))
        interval = mean_interval(
            [(y, p, t, patients) for (y, p, patients, _), t in zip(predictions, thresholds, strict=True)]
        )
        splits[name] = {
            "n": len(label_of),
            "patients": len(set.union(*owners)),
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
            name: [f"fold {k} seed {seed}" for k, s in enumerate(summaries) for seed in s[name]]
            for name in ("stuck_seeds", "chance_seeds")
        },
        "selection": summaries[0]["selection"],
        "threshold": {"chosen_on": summaries[0]["threshold"]["chosen_on"]},
    }
    write_json(path / "summary.json", summary)
    return summary


def read_predictions(
    run: Path, split: str
) -> tuple[NDArray[np.int64], list[NDArray[np.float64]], list[str], list[str]]:
    """From predictions.csv: labels [n] of a split, probabilities per seed [n] or [n, classes], patients [n], bags [n].

    A bag without a patient (in older files: every bag) is its own.
    """
    seeds = read_json(run / "summary.json")["seeds"]
    labels: list[int] = []
    per_seed: list[NDArray[np.float64]] = []
    patients: list[str] = []
    ids: list[str] = []
    for seed in seeds:
        file = run / f"seed-{seed}" / "predictions.csv"
        with file.open(newline="", encoding="utf-8") as handle:
            rows = [row for row in csv.DictReader(handle) if row["split"] == split]
        if not rows:
            raise DataError(f"{file} has no rows of the split {split!r}")
        labels = [int(row["label"]) for row in rows]
        ids = [row["bag_id"] for row in rows]
        patients = [row.get("patient_id") or row["bag_id"] for row in rows]
        columns = [c for c in rows[0] if c.startswith("probability_")]
        if columns:
            per_seed.append(np.array([[float(row[c]) for c in columns] for row in rows]))
        else:
            per_seed.append(np.array([float(row["probability"]) for row in rows]))
    return np.array(labels), per_seed, patients, ids


def _number(value: float | None) -> float:
    return math.nan if value is None else value

"""What default training learns from a cohort of ordinary size: out-of-fold AUROC, learned lengths, processor time.

Finished folds are kept in --out: the same command goes on where it stopped. Features as CLAM writes them.

Example: python experiments/hundred_slides.py cohort/h5_files --labels cohort/labels.csv --mpp 0.25 --out hundred.json
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cyclopts import App

import dasmil
from dasmil.data.labels import read_labels
from dasmil.data.scale import Scale, Scales
from dasmil.data.splits import make_folds
from dasmil.files import write_json
from dasmil.stats import auroc
from dasmil.types import Bag

app = App()


@app.default
def main(
    features: Path, *, labels: Path, mpp: float, out: Path, model: str = "das-mil", folds: int = 5, seeds: int = 3
) -> None:
    """Train `seeds` runs in every fold on all other folds, with default settings, and score the fold left out."""
    bags = list(dasmil.load_cohort(features, read_labels(labels), scales=Scales(Scale(mpp=mpp))))
    record = measure(bags, out, model=model, folds=folds, seeds=seeds)
    print(summary(record))


def measure(bags: Sequence[Bag], out: Path, *, model: str, folds: int, seeds: int) -> dict[str, Any]:
    """The predictions of every fold by runs that were trained on the others, kept in ``out`` fold by fold."""
    y = [int(bag.label or 0) for bag in bags]
    patients = [bag.patient_id or bag.bag_id for bag in bags]
    record: dict[str, Any] = {"model": model, "bags": len(bags), "features": bags[0].features.shape[1], "folds": []}
    if out.exists():
        record = json.loads(out.read_text(encoding="utf-8"))
    for number, fold in enumerate(make_folds(patients, y, folds)):
        if number < len(record["folds"]):
            continue
        begun = time.process_time()
        runs = dasmil.fit(model, [bags[i] for i in sorted({*fold.train, *fold.val})], seeds=seeds)
        seconds = (time.process_time() - begun) / seeds
        record["folds"].append(
            {
                "bags": [bags[i].bag_id for i in fold.test],
                "labels": [y[i] for i in fold.test],
                "probabilities": [run.predict([bags[i] for i in fold.test]).tolist() for run in runs],
                "lengths": [[row["midpoint"] for row in run.model.learned_distances()] for run in runs],
                "fitted": [run.fitted for run in runs],
                "cpu_seconds_per_run": seconds,
            }
        )
        write_json(out, record)
        print(f"fold {number + 1} of {folds}: {seconds:.0f} CPU seconds a run", flush=True)
    return record


def summary(record: dict[str, Any]) -> str:
    """One line: mean over seeds of the out-of-fold AUROC, that of the seeds together, lengths, time."""
    parts = record["folds"]
    positive = np.concatenate([part["labels"] for part in parts]) == 1
    scores = np.concatenate([np.array(part["probabilities"]) for part in parts], axis=1)
    single = float(np.mean([auroc(row, positive)[0] for row in scores]))
    together = float(auroc(scores.mean(0), positive)[0])
    lengths = [length for part in parts for run in part["lengths"] for length in run[:1]]
    reach = f", lengths {min(lengths):,.0f} to {max(lengths):,.0f} um" if lengths else ""
    cpu = float(np.mean([part["cpu_seconds_per_run"] for part in parts]))
    return (
        f"{record['model']}: out-of-fold AUROC {single:.3f} (mean over seeds), {together:.3f} (seeds together), "
        f"{record['bags']} slides{reach}, {cpu:.0f} CPU seconds a run"
    )


if __name__ == "__main__":
    app()

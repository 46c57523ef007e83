"""How often does a DAS-MIL run fail to fit its training bags? As in the paper, and as dasmil starts it.

Example: python experiments/stuck.py made --out stuck-made.json
         python experiments/stuck.py contact --cells cells.csv.gz --um-per-pixel 0.390625 --out stuck-contact.json
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from cyclopts import App
from sklearn.metrics import roc_auc_score

import dasmil
from dasmil.data.contact import contact_crops
from dasmil.data.made import MadeCohort, make_cohort
from dasmil.data.splits import make_folds
from dasmil.data.tables import read_table
from dasmil.types import Bag

app = App()

# Before: one start for all data (theta 0.5 of the largest distance, beta 10), one learning rate, no second attempt.
BEFORE: dict[str, Any] = {"distance_init": "model", "distance_lr": "common", "restarts": 0}
# First attempt only: the product's start and learning rate of theta and beta, still without a second attempt.
FIRST: dict[str, Any] = {"restarts": 0}
AFTER: dict[str, Any] = {}


@app.default
def main(
    data: Literal["made", "contact", "mnist-collage", "mnist-collage-inv"],
    *,
    out: Path,
    cells: Path | None = None,
    um_per_pixel: float = 800 / 2048,
    bags: int = 410,
    seeds: int = 20,
    epochs: int = 24,
) -> None:
    """Train `seeds` runs under each condition and count those that did not fit."""
    train, test, options, settings = _load(data, cells, um_per_pixel, bags)
    record: dict[str, Any] = {"data": data, "train": len(train), "test": len(test), "epochs": epochs, "conditions": {}}
    for name, condition in {"before": BEFORE, "start": FIRST, "after": AFTER}.items():
        if name == "after":
            done = record["conditions"]["start"]["runs"]
            again = [run["seed"] for run in done if not run["fitted"]]
            # Runs that fitted at once are the same in both conditions: only the others are trained again.
            runs = [run for run in done if run["fitted"]]
            seconds = record["conditions"]["start"]["cpu_seconds"]
        else:
            again, runs, seconds = list(range(seeds)), [], 0.0
        begun = time.process_time()
        if again:
            fitted = dasmil.fit(
                "das-mil", train, seeds=again, model_options=options, epochs=epochs, **{**settings, **condition}
            )
            runs += [_row(run, test) for run in fitted]
        seconds += time.process_time() - begun
        stuck = sum(not run["fitted"] for run in runs)
        record["conditions"][name] = {"stuck": stuck, "of": len(runs), "cpu_seconds": round(seconds, 1), "runs": runs}
        out.write_text(json.dumps(record, indent=1))
        scores = sorted(run["auroc"] for run in runs)
        print(
            f"{data} {name}: {stuck} of {len(runs)} stuck, test AUROC {scores[0]:.3f} to {scores[-1]:.3f}", flush=True
        )


def _row(run: Any, test: Sequence[Bag]) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "fitted": run.fitted,
        "train_loss": run.train_loss,
        "auroc": float(roc_auc_score([bag.label for bag in test], run.predict(test))),
        "midpoint": [row["midpoint"] for row in run.model.learned_distances()],
        "attempts": len(run.attempts),
    }


def _load(
    data: str, cells: Path | None, um_per_pixel: float, bags: int
) -> tuple[Sequence[Bag], Sequence[Bag], dict[str, Any], dict[str, Any]]:
    """Training bags, test bags, options of the model and settings of training."""
    if data == "made":
        design = MadeCohort(tiles=(300, 500), islands=(1, 3), in_features=32)
        train, test = make_cohort(160, seed=1, design=design), make_cohort(60, seed=2, design=design, name="test")
        return train, test, {"out_features": 16}, {"lr": 3e-3, "schedule": "hold-linear", "accumulate": 4, "clip": 1.0}
    if data == "contact":
        if cells is None:
            raise SystemExit("contact needs --cells, a table with patient, x, y and cell_type")
        fields = read_table(cells, bag="patient", unit="px", um_per_unit=um_per_pixel, one_hot="cell_type")
        crops = contact_crops(fields)
        fold = make_folds([str(crop.patient_id) for crop in crops], [crop.label for crop in crops], 5)[0]
        options = {"encoder": "linear-relu", "encoder_features": 32, "hidden": 10, "out_features": 16}
        settings = {"lr": 5e-3, "schedule": "hold-linear", "accumulate": 8, "clip": 1.0}
        return (
            [crops[i] for i in fold.train[:: -(-len(fold.train) // bags)]],
            [crops[i] for i in fold.test],
            options,
            settings,
        )
    train, test = dasmil.load_dataset(data, split="train"), dasmil.load_dataset(data, split="test")
    options = {"encoder": "mnist-cnn", "self_pair": False}
    return train, test, options, {"lr": 1e-3, "weight_decay": 1e-2}


if __name__ == "__main__":
    app()

"""How often does a DAS-MIL run fail to fit its training bags? As in the paper, and as dasmil trains by default.

Finished seeds are kept in --out: the same command goes on where it stopped.

Example: python experiments/stuck.py made --out stuck-made.json
         python experiments/stuck.py contact --cells cells.csv.gz --out stuck-contact.json
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from cyclopts import App
from sklearn.metrics import roc_auc_score

import dasmil
from dasmil.data.contact import ContactTask, contact_crops
from dasmil.data.splits import make_folds
from dasmil.data.synthetic import MadeCohort, make_cohort
from dasmil.data.tables import read_table
from dasmil.train.defaults import default_options, default_settings
from dasmil.types import Bag

app = App()

# The paper's: theta 0.5 and beta 10 in units of the whole field, one learning rate for all, one bag a step, no second
# attempt. The model has the size that dasmil gives it, and training as many epochs.
BEFORE: dict[str, Any] = {
    "distance_init": "model", "distance_lr": "common", "feature_step": "common", "starts": 1, "restarts": 0,
    "lr": 1e-3, "weight_decay": 1e-2, "accumulate": 1, "clip": None, "schedule": "constant",
}  # fmt: skip
AFTER: dict[str, Any] = {}


@app.default
def main(
    data: Literal["made", "contact", "mnist-collage", "mnist-collage-inv"],
    *,
    out: Path,
    cells: Path | None = None,
    um_per_pixel: float = 800 / 2048,
    seeds: int = 20,
    together: int = 5,
) -> None:
    """Train `seeds` runs before and after, `together` at a time, and count those that did not fit."""
    train, test, planted = _load(data, cells, um_per_pixel)
    shape = train[0].features.shape[1:]
    preset = "mnist-collage" if len(shape) > 1 else None
    # As the equations have it, the pair (i, i) has an embedding; the preset follows the published program.
    options = {"before": {} if preset else default_options("das-mil", shape, None, {"self_pair": True}), "after": {}}
    epochs = default_settings("das-mil", shape, len(train), {}).get("epochs", 50)
    record: dict[str, Any] = {
        "data": data, "train": len(train), "test": len(test), "epochs": epochs, "planted": planted,
        "before": [], "after": [], "cpu_seconds": {"before": 0.0, "after": 0.0},
    }  # fmt: skip
    if out.exists():
        record = json.loads(out.read_text())
    for name, condition in (("after", AFTER), ("before", BEFORE)):
        while len(record[name]) < seeds:
            done = len(record[name])
            begun = time.process_time()
            runs = dasmil.fit(
                "das-mil", train, seeds=list(range(done, min(seeds, done + together))), preset=preset,
                model_options=options[name], **{"epochs": epochs, **condition},
            )  # fmt: skip
            record["cpu_seconds"][name] += time.process_time() - begun
            record[name] += [_row(run, test) for run in runs]
            _write(out, record)
            print(f"{data} {name}: {len(record[name])} of {seeds}", flush=True)
    for name in ("before", "after"):
        rows = record[name]
        scores = sorted(row["auroc"] for row in rows)
        print(
            f"{data} {name}: {sum(not row['fitted'] for row in rows)} of {len(rows)} stuck, test AUROC "
            f"{scores[0]:.3f} to {scores[-1]:.3f} (median {scores[len(scores) // 2]:.3f})"
        )


def _row(run: Any, test: Sequence[Bag]) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "fitted": run.fitted,
        "train_loss": round(run.train_loss, 5),
        "auroc": round(float(roc_auc_score([bag.label for bag in test], run.predict(test))), 5),
        "midpoint": [round(row["midpoint"], 2) for row in run.model.learned_distances()],
        "attempts": len(run.attempts),
    }


def _write(out: Path, record: dict[str, Any]) -> None:
    temporary = out.with_suffix(".part")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(temporary, out)


def _load(data: str, cells: Path | None, um_per_pixel: float) -> tuple[Sequence[Bag], Sequence[Bag], float]:
    """Training bags, test bags, and the distance that decides the label."""
    if data == "made":
        design = MadeCohort(tiles=(300, 500), islands=(1, 3))
        train, test = make_cohort(120, seed=1, design=design), make_cohort(60, seed=2, design=design, name="test")
        return train, test, design.distance_um
    if data == "contact":
        if cells is None:
            raise SystemExit("contact needs --cells, a table with patient, x, y and cell_type")
        fields = read_table(cells, bag="patient", unit="px", um_per_unit=um_per_pixel, one_hot="cell_type")
        crops = contact_crops(fields)
        fold = make_folds([str(crop.patient_id) for crop in crops], [crop.label for crop in crops], 5, val_share=None)[
            1
        ]
        train = sorted(fold.train + fold.val)[::2]  # every second crop: 20 seeds in an hour
        return [crops[i] for i in train], [crops[i] for i in fold.test], ContactTask().radius_um
    train, test = dasmil.load_dataset(data, split="train"), dasmil.load_dataset(data, split="test-large")
    return train, test, 80.0 if data == "mnist-collage" else 170.0


if __name__ == "__main__":
    app()

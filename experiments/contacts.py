"""How many cells touch? A number to learn from real tissue: triple-negative breast tumours (Keren et al., Cell 2018).

The target is how many CD8T cells of a 120 um crop have an Endothelial/Vim cell within 15 um: 0 to 4, as many crops of
each in every bin of the counts of both types, so that counting cells tells nothing. Folds by patient. cells: a table
with the columns patient, x, y (pixels) and cell_type. What is finished is kept in --out: the same command goes on.

Example: python experiments/contacts.py --cells cells.csv.gz --out contacts.json
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from cyclopts import App
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dasmil
from dasmil.data.contact import counted_crops
from dasmil.data.splits import make_folds
from dasmil.data.tables import read_table
from dasmil.stats import numeric_scores
from dasmil.types import Bag

app = App()

MODELS = ("mean-pool", "max-pool", "sa", "das-mil", "das-mil sum", "das-mil max")
LR = 5e-3  # what das-mil has by default; the others get the same


@app.default
def main(
    *,
    cells: Path,
    out: Path,
    um_per_pixel: float = 800 / 2048,
    models: list[str] | None = None,
    folds: int = 5,
    seeds: int = 1,
) -> None:
    """Default settings of regression. "das-mil sum" and "das-mil max" differ in how instances are pooled."""
    fields = read_table(cells, bag="patient", unit="px", um_per_unit=um_per_pixel, one_hot="cell_type")
    crops = counted_crops(fields)
    truth = np.array([crop.targets["contacts"] for crop in crops], dtype=np.float64)
    print(f"{len(crops)} crops of {len({crop.patient_id for crop in crops})} patients", flush=True)
    upper = (truth > np.median(truth)).astype(int).tolist()
    rounds = make_folds([str(crop.patient_id) for crop in crops], upper, folds, val_share=None)
    record: dict[str, Any] = {"crops": len(crops), "folds": {}}
    if out.exists():
        record = json.loads(out.read_text())
    for number, fold in enumerate(rounds):
        train, test = [crops[i] for i in sorted(fold.train + fold.val)], [crops[i] for i in fold.test]
        row = record["folds"].setdefault(
            str(number),
            {"patients": [c.patient_id for c in test], "truth": [c.targets["contacts"] for c in test], "models": {}},
        )
        for name in ("composition", *(models or MODELS)):
            if name in row["models"]:
                continue
            row["models"][name] = (
                composition(train, test) if name == "composition" else trained(name, train, test, seeds)
            )
            temporary = out.with_suffix(".part")
            temporary.write_text(json.dumps(record) + "\n")
            os.replace(temporary, out)
            print(f"fold {number}  {name:12} {shown(row['truth'], row['models'][name])}", flush=True)
    summary(record)


def composition(train: list[Bag], test: list[Bag]) -> list[dict[str, Any]]:
    """A ridge regression on the shares of types and the number of cells."""
    x, y = ([[*bag.features.mean(0).tolist(), len(bag)] for bag in bags] for bags in (train, test))
    model = make_pipeline(StandardScaler(), Ridge(10.0)).fit(x, [bag.targets["contacts"] for bag in train])
    return [{"said": [round(float(value), 4) for value in model.predict(y)]}]


def trained(name: str, train: list[Bag], test: list[Bag], seeds: int) -> list[dict[str, Any]]:
    """What every seed says of the test crops, and the length that it learned."""
    model, _, pooling = name.partition(" ")
    options = {"pooling": pooling} if pooling else None
    runs = dasmil.fit(
        model, train, seeds=seeds, lr=LR, model_options=options, task=dasmil.regression("contacts"), progress=False
    )
    return [
        {
            "said": [round(float(value), 4) for value in run.predict(test)],
            "fitted": run.fitted,
            "theta_um": [round(row["midpoint"], 2) for row in run.model.learned_distances()],
        }
        for run in runs
    ]


def shown(truth: list[float], runs: list[dict[str, Any]]) -> str:
    found = [numeric_scores(np.array(truth), np.array(run["said"])) for run in runs]
    theta = " ".join(f"{value:.1f}" for run in runs for value in run.get("theta_um", [])[:1])
    return " ".join(f"R2 {float(one['r2'][0]):.3f}" for one in found) + (f"  theta {theta} um" if theta else "")


def summary(record: dict[str, Any], draws: int = 500) -> None:
    """Mean over folds and seeds of R2 with its 95 % interval, patients resampled, and learned lengths."""
    folds = list(record["folds"].values())
    rng = np.random.default_rng(0)
    weights = []
    for fold in folds:
        patients, member = np.unique(fold["patients"], return_inverse=True)
        drawn = rng.multinomial(len(patients), np.full(len(patients), 1 / len(patients)), size=draws)
        weights.append(drawn[:, member].astype(np.float64))
    for name in folds[0]["models"]:
        if not all(name in fold["models"] for fold in folds):
            continue
        every, means = [], []
        for fold, drawn in zip(folds, weights, strict=True):
            for run in fold["models"][name]:
                truth, said = np.array(fold["truth"]), np.array(run["said"])
                every.append(float(numeric_scores(truth, said)["r2"][0]))
                means.append(numeric_scores(truth, said, drawn)["r2"])
        low, high = np.nanquantile(np.mean(means, axis=0), [0.025, 0.975])
        theta = [value for fold in folds for run in fold["models"][name] for value in run.get("theta_um", [])[:1]]
        learned = f"  theta {min(theta):.1f} to {max(theta):.1f} um" if theta else ""
        print(f"{name:12} R2 {np.mean(every):.3f} [{low:.3f}, {high:.3f}]  lowest fold {min(every):.3f}{learned}")


if __name__ == "__main__":
    app()

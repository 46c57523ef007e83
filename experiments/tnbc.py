"""Two questions about real tissue: cells of triple-negative breast tumours (Keren et al., Cell 2018), with positions.

cells: a table with the columns patient, x, y (pixels) and cell_type; labels: a table with patient and label.

Example: python experiments/tnbc.py label --cells cells.csv.gz --labels labels.csv --out label.json
         python experiments/tnbc.py contact --cells cells.csv.gz --out contact.json
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cyclopts import App
from scipy.spatial import KDTree
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dasmil
from dasmil.data.combine import sample_instances
from dasmil.data.contact import ContactTask, contact_crops
from dasmil.data.labels import read_rows
from dasmil.data.splits import make_folds
from dasmil.data.tables import read_table
from dasmil.types import Bag

app = App()

MODELS = ("mean-pool", "max-pool", "ab-mil", "sa", "das-mil")
ENCODER: dict[str, Any] = {"encoder": "linear-relu", "encoder_features": 32}
ATTENTION: dict[str, Any] = {"hidden": 10, "out_features": 16}
SETTINGS: dict[str, Any] = {"lr": 5e-3, "schedule": "hold-linear", "accumulate": 8, "clip": 1.0}
NEAR_UM = 15.0


@app.command
def contact(
    *,
    cells: Path,
    out: Path,
    um_per_pixel: float = 800 / 2048,
    models: list[str] | None = None,
    folds: int = 5,
    epochs: int = 15,
    seeds: int = 1,
) -> None:
    """Is any CD8T cell within 15 um of an Endothelial/Vim cell? 120 um crops, counts of both types matched.

    Fold 0 was used to choose the settings above and is left out of the results.
    """
    task = ContactTask()
    crops = contact_crops(_fields(cells, um_per_pixel), task)
    rounds = make_folds([str(crop.patient_id) for crop in crops], [crop.label for crop in crops], folds)
    print(f"{len(crops)} crops, {sum(crop.label or 0 for crop in crops)} positive", flush=True)
    record: dict[str, Any] = {"crops": len(crops), "radius_um": task.radius_um, "folds": {}}
    for number, fold in enumerate(rounds[1:], start=1):
        train = [crops[i] for i in sorted(fold.train + fold.val)]
        test = [crops[i] for i in fold.test]
        rows = {
            "composition": [_regression(train, test, _composition)],
            "neighbour pairs": [_regression(train, test, _pairs)],
        }
        for name in models or MODELS:
            rows[name] = _train(name, train, test, epochs, seeds, "max")
        record["folds"][number] = rows
        out.write_text(json.dumps(record, indent=1))
        _show(f"fold {number}", rows)
    _summary(record["folds"])


@app.command
def label(
    *,
    cells: Path,
    labels: Path,
    out: Path,
    um_per_pixel: float = 800 / 2048,
    models: list[str] | None = None,
    folds: int = 5,
    repeats: int = 2,
    max_cells: int = 1000,
    epochs: int = 30,
) -> None:
    """Mixed (1) or compartmentalised (0) tumour? Repeated cross-validation by patient over whole fields.

    max_cells: random cells of a field that the networks see (the regressions see all), to keep this short.
    """
    _, rows = read_rows(labels)
    known = {row["patient"]: int(row["label"]) for row in rows}
    whole = [
        replace(field, label=known[field.bag_id]) for field in _fields(cells, um_per_pixel) if field.bag_id in known
    ]
    parts = [sample_instances(field, max_cells, seed=0) if len(field) > max_cells else field for field in whole]
    record: dict[str, Any] = {
        "patients": len(whole),
        "positives": sum(known.values()),
        "max_cells": max_cells,
        "repeats": [],
    }
    for repeat in range(repeats):
        pooled: dict[str, list[tuple[int, float]]] = {}
        for fold in make_folds([f.bag_id for f in whole], [f.label for f in whole], folds, seed=repeat):
            train = sorted(fold.train + fold.val)
            for name, measure in (("composition", _composition), ("neighbour pairs", _pairs)):
                scores = _regression_scores([whole[i] for i in train], [whole[i] for i in fold.test], measure)
                pooled.setdefault(name, []).extend((int(whole[i].label or 0), s) for i, s in zip(fold.test, scores))
            for name in models or MODELS:
                runs = _fit(name, [parts[i] for i in train], epochs, [repeat], "mean")
                scores = runs[0].predict([parts[i] for i in fold.test])
                pooled.setdefault(name, []).extend(
                    (int(parts[i].label or 0), float(s)) for i, s in zip(fold.test, scores)
                )
        scores = {name: roc_auc_score(*zip(*pairs)) for name, pairs in pooled.items()}
        intervals = {name: _interval(pairs) for name, pairs in pooled.items()}
        record["repeats"].append({"auroc": scores, "interval": intervals})
        out.write_text(json.dumps(record, indent=1))
        for name, value in scores.items():
            print(
                f"repeat {repeat}  {name:16} {value:.3f} [{intervals[name][0]:.2f}, {intervals[name][1]:.2f}]",
                flush=True,
            )


def _fields(cells: Path, um_per_pixel: float) -> list[Bag]:
    return read_table(cells, bag="patient", unit="px", um_per_unit=um_per_pixel, one_hot="cell_type")


def _fit(name: str, train: Sequence[Bag], epochs: int, seeds: Sequence[int], pooling: str) -> list[Any]:
    options = {**ENCODER, **ATTENTION, "pooling": pooling} if name in ("sa", "das-mil") else dict(ENCODER)
    return dasmil.fit(name, train, seeds=seeds, model_options=options, epochs=epochs, **SETTINGS)


def _train(
    name: str, train: Sequence[Bag], test: Sequence[Bag], epochs: int, seeds: int, pooling: str
) -> list[dict[str, Any]]:
    return [
        {
            "auroc": float(roc_auc_score([bag.label for bag in test], run.predict(test))),
            "fitted": run.fitted,
            "attempts": len(run.attempts),
            "theta_um": [row["midpoint"] for row in run.model.learned_distances()],
        }
        for run in _fit(name, train, epochs, range(seeds), pooling)
    ]


def _composition(bag: Bag) -> np.ndarray:
    """Shares of the cell types, as logarithms."""
    assert bag.instance_labels is not None
    counts = np.bincount(bag.instance_labels.numpy(), minlength=bag.features.shape[1])
    return np.log((counts + 0.5) / (counts.sum() + 0.5 * len(counts)))


def _pairs(bag: Bag) -> np.ndarray:
    """Pairs of cell types within 15 um, observed over expected from the counts, as logarithms."""
    assert bag.instance_labels is not None
    kinds, k = bag.instance_labels.numpy(), bag.features.shape[1]
    near = KDTree(bag.coords.numpy()).query_pairs(NEAR_UM, output_type="ndarray")
    table = np.zeros((k, k))
    np.add.at(table, (kinds[near[:, 0]], kinds[near[:, 1]]), 1)
    table += table.T
    share = np.bincount(kinds, minlength=k) / len(kinds)
    ratio = np.log((table + 0.5) / (np.outer(share, share) * table.sum() + 0.5))
    return ratio[np.triu_indices(k)]


def _regression_scores(train: Sequence[Bag], test: Sequence[Bag], measure: Any) -> list[float]:
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000))
    model.fit(np.array([measure(bag) for bag in train]), [bag.label for bag in train])
    return [float(p) for p in model.predict_proba(np.array([measure(bag) for bag in test]))[:, 1]]


def _regression(train: Sequence[Bag], test: Sequence[Bag], measure: Any) -> dict[str, Any]:
    return {"auroc": float(roc_auc_score([bag.label for bag in test], _regression_scores(train, test, measure)))}


def _interval(pairs: Sequence[tuple[int, float]], draws: int = 2000) -> list[float]:
    """95 % interval over patients."""
    rng = np.random.default_rng(0)
    labels, scores = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    found = []
    while len(found) < draws:
        chosen = rng.integers(len(pairs), size=len(pairs))
        if 0 < labels[chosen].sum() < len(chosen):
            found.append(roc_auc_score(labels[chosen], scores[chosen]))
    return [float(value) for value in np.quantile(found, [0.025, 0.975])]


def _show(title: str, rows: dict[str, list[dict[str, Any]]]) -> None:
    for name, runs in rows.items():
        theta = " ".join(f"{value:.1f}" for run in runs for value in run.get("theta_um", []))
        stuck = sum(not run.get("fitted", True) for run in runs)
        scores = " ".join(f"{run['auroc']:.3f}" for run in runs)
        print(f"{title}  {name:16} {scores}  {f'theta {theta} um, {stuck} stuck' if theta else ''}", flush=True)


def _summary(folds: dict[int, dict[str, list[dict[str, Any]]]]) -> None:
    for name in next(iter(folds.values())):
        scores = [run["auroc"] for rows in folds.values() for run in rows[name]]
        print(f"mean  {name:16} {np.mean(scores):.3f} (lowest {min(scores):.3f}, {len(scores)} runs)")


if __name__ == "__main__":
    app()

"""Two questions about real tissue: cells of triple-negative breast tumours (Keren et al., Cell 2018), with positions.

cells: a table with the columns patient, x, y (pixels) and cell_type; labels: a table with patient and label. What is
finished is kept in --out: the same command goes on where it stopped.

Example: python experiments/tnbc.py label --cells cells.csv.gz --labels labels.csv --out label.json
         python experiments/tnbc.py contact --cells cells.csv.gz --out contact.json
"""

from __future__ import annotations

import json
import os
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
from dasmil.data.splits import make_folds
from dasmil.data.tables import read_table
from dasmil.data.text_table import read_rows
from dasmil.types import Bag

app = App()

MODELS = ("mean-pool", "max-pool", "ab-mil", "sa", "das-mil")
LR = 5e-3  # what das-mil has by default; the others learn too slowly in as many epochs with their 1e-3
NEAR_UM = 15.0


@app.command
def contact(
    *,
    cells: Path,
    out: Path,
    um_per_pixel: float = 800 / 2048,
    models: list[str] | None = None,
    folds: int = 5,
    seeds: int = 3,
) -> None:
    """Is any CD8T cell within 15 um of an Endothelial/Vim cell? 120 um crops, counts of both types matched.

    Default settings. Fold 0 was used to choose the defaults and is left out of the results.
    """
    task = ContactTask()
    crops = contact_crops(_fields(cells, um_per_pixel), task)
    rounds = make_folds([str(crop.patient_id) for crop in crops], [crop.label for crop in crops], folds, val_share=None)
    print(f"{len(crops)} crops, {sum(crop.label or 0 for crop in crops)} positive", flush=True)
    record: dict[str, Any] = {"crops": len(crops), "radius_um": task.radius_um, "folds": {}}
    if out.exists():
        record = json.loads(out.read_text())
    for number, fold in enumerate(rounds[1:], start=1):
        train = [crops[i] for i in sorted(fold.train + fold.val)]
        test = [crops[i] for i in fold.test]
        rows = record["folds"].setdefault(
            str(number), {"patients": [c.patient_id for c in test], "labels": [c.label for c in test], "models": {}}
        )
        for name in ("composition", "neighbour pairs", *(models or MODELS)):
            if name in rows["models"]:
                continue
            if name in MEASURES:
                rows["models"][name] = [_scored(_regression_scores(train, test, MEASURES[name]), test)]
            else:
                runs = dasmil.fit(name, train, seeds=seeds, lr=LR)
                rows["models"][name] = [{**_scored(run.predict(test), test), **_state(run)} for run in runs]
            _write(out, record)
            _show(f"fold {number}", name, rows["models"][name])
    _contact_summary(record)


@app.command
def label(
    *,
    cells: Path,
    labels: Path,
    out: Path,
    um_per_pixel: float = 800 / 2048,
    models: list[str] | None = None,
    folds: int = 5,
    repeats: int = 3,
    max_cells: int = 500,
    epochs: int = 40,
) -> None:
    """Mixed (1) or compartmentalised (0) tumour? Repeated cross-validation by patient over whole fields.

    Attention is followed by mean pooling. max_cells: random cells of a field that the networks see (the regressions
    see all), to keep this short.
    """
    _, rows = read_rows(labels)
    known = {row["patient"]: int(row["label"]) for _, row in rows}
    whole = [
        replace(field, label=known[field.bag_id]) for field in _fields(cells, um_per_pixel) if field.bag_id in known
    ]
    parts = [sample_instances(field, max_cells, seed=0) if len(field) > max_cells else field for field in whole]
    record: dict[str, Any] = {
        "patients": [f.bag_id for f in whole], "labels": [f.label for f in whole], "max_cells": max_cells,
        "epochs": epochs, "folds": folds, "scores": {},
    }  # fmt: skip
    if out.exists():
        record = json.loads(out.read_text())
    for repeat in range(repeats):
        for name in ("composition", "neighbour pairs", *(models or MODELS)):
            done = record["scores"].setdefault(name, [])
            if len(done) > repeat:
                continue
            scores, stuck = [0.0] * len(whole), 0
            for fold in make_folds(
                [f.bag_id for f in whole], [f.label for f in whole], folds, seed=repeat, val_share=None
            ):
                train = sorted(fold.train + fold.val)
                if name in MEASURES:
                    found = _regression_scores([whole[i] for i in train], [whole[i] for i in fold.test], MEASURES[name])
                else:
                    options = {"pooling": "mean"} if name in ("sa", "das-mil") else {}
                    run = dasmil.fit(
                        name, [parts[i] for i in train], seeds=[repeat], model_options=options, epochs=epochs, lr=LR
                    )[0]
                    found = run.predict([parts[i] for i in fold.test])
                    stuck += not run.fitted
                for i, score in zip(fold.test, found, strict=True):
                    scores[i] = round(float(score), 5)
            done.append(scores)
            record.setdefault("not_fitted", {}).setdefault(name, []).append(stuck)
            _write(out, record)
            print(
                f"repeat {repeat}  {name:16} {roc_auc_score(record['labels'], scores):.3f}  {stuck} stuck", flush=True
            )
    _label_summary(record)


def _label_summary(record: dict[str, Any]) -> None:
    """Mean AUROC over repeats, its 95 % interval over patients, and the difference to composition."""
    labels = np.array(record["labels"])
    scores = {name: np.array(values) for name, values in record["scores"].items()}
    draws = _draws([np.arange(len(labels))], labels)

    def mean(values: np.ndarray, chosen: np.ndarray) -> float:
        return float(np.mean([roc_auc_score(labels[chosen], row[chosen]) for row in values]))

    everyone = np.arange(len(labels))
    base = np.array([mean(scores["composition"], chosen) for chosen in draws])
    for name, values in scores.items():
        found = np.array([mean(values, chosen) for chosen in draws])
        low, high = np.quantile(found, [0.025, 0.975])
        below, above = np.quantile(found - base, [0.025, 0.975])
        repeats = ", ".join(f"{mean(row[None], everyone):.3f}" for row in values)
        print(
            f"{name:16} {mean(values, everyone):.3f} [{low:.2f}, {high:.2f}]  repeats {repeats}  "
            f"minus composition [{below:+.2f}, {above:+.2f}]"
        )


def _contact_summary(record: dict[str, Any]) -> None:
    """Mean AUROC over folds and seeds with its 95 % interval over patients, learned distances and stuck runs."""
    folds = list(record["folds"].values())
    names = [name for name in folds[0]["models"] if all(name in fold["models"] for fold in folds)]
    drawn = []
    for fold in folds:
        patients = np.array(fold["patients"])
        groups = [np.flatnonzero(patients == patient) for patient in dict.fromkeys(fold["patients"])]
        drawn.append(_draws(groups, np.array(fold["labels"])))
    for name in names:
        runs = [run for fold in folds for run in fold["models"][name]]
        means = []
        for draw in range(len(drawn[0])):
            values = []
            for fold, draws in zip(folds, drawn, strict=True):
                labels, chosen = np.array(fold["labels"]), draws[draw]
                values += [
                    roc_auc_score(labels[chosen], np.array(run["scores"])[chosen]) for run in fold["models"][name]
                ]
            means.append(np.mean(values))
        low, high = np.quantile(means, [0.025, 0.975])
        aurocs = [run["auroc"] for run in runs]
        theta = [value for run in runs for value in run.get("theta_um", [])]
        learned = f", theta {min(theta):.1f} to {max(theta):.1f} um" if theta else ""
        stuck = sum(not run["fitted"] for run in runs) if "fitted" in runs[0] else None
        print(
            f"{name:16} {np.mean(aurocs):.3f} [{low:.3f}, {high:.3f}]  lowest {min(aurocs):.3f} of {len(runs)}{learned}"
            + ("" if stuck is None else f", {stuck} stuck")
        )


def _draws(groups: Sequence[np.ndarray], labels: np.ndarray, count: int = 500) -> list[np.ndarray]:
    """Resamples of patients (each group of rows, or every row of a single group) that hold both classes."""
    rng = np.random.default_rng(0)
    units = [np.array([row]) for row in groups[0]] if len(groups) == 1 else list(groups)
    found: list[np.ndarray] = []
    while len(found) < count:
        chosen = np.concatenate([units[k] for k in rng.integers(len(units), size=len(units))])
        if 0 < labels[chosen].sum() < len(chosen):
            found.append(chosen)
    return found


def _fields(cells: Path, um_per_pixel: float) -> list[Bag]:
    return read_table(cells, bag="patient", unit="px", um_per_unit=um_per_pixel, one_hot="cell_type")


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


def _scored(scores: Any, test: Sequence[Bag]) -> dict[str, Any]:
    rounded = [round(float(score), 5) for score in scores]
    return {"auroc": float(roc_auc_score([bag.label for bag in test], rounded)), "scores": rounded}


def _state(run: Any) -> dict[str, Any]:
    learned = [round(row["midpoint"], 2) for row in run.model.learned_distances()]
    return {"fitted": run.fitted, "attempts": len(run.attempts), **({"theta_um": learned} if learned else {})}


def _write(out: Path, record: dict[str, Any]) -> None:
    temporary = out.with_suffix(".part")
    temporary.write_text(json.dumps(record) + "\n")
    os.replace(temporary, out)


def _show(title: str, name: str, runs: list[dict[str, Any]]) -> None:
    theta = " ".join(f"{value:.1f}" for run in runs for value in run.get("theta_um", []))
    stuck = sum(not run.get("fitted", True) for run in runs)
    scores = " ".join(f"{run['auroc']:.3f}" for run in runs)
    print(f"{title}  {name:16} {scores}  {f'theta {theta} um, {stuck} stuck' if theta else ''}", flush=True)


MEASURES = {"composition": _composition, "neighbour pairs": _pairs}

if __name__ == "__main__":
    app()

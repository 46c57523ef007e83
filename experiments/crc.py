"""Real nuclei of colorectal cancer: do inflammatory cells lie among epithelial ones, or beside them?

The data (CRCHistoPhenotypes, Sirinukunwattana et al. 2016, for research only) is not part of this package. The folder
holds cells.csv.gz (image, x_px, y_px, class) and images.csv (image, region: images that continue each other). Finished
folds are kept in --out: the same command goes on where it stopped.

Example: python experiments/crc.py run data/crc --out docs/results/spatial --models das-mil,sa
         python experiments/crc.py variants data/crc
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from cells import MODELS, Task, run_cell, summary
from cyclopts import App
from scipy.spatial import KDTree
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dasmil.files import read_csv
from dasmil.types import Bag

app = App()

KINDS = ("epithelial", "inflammatory", "fibroblast", "others")
UM_PER_PX = 0.55  # as commonly stated for this set
SIDE_PX, WINDOW_PX, STEP_PX = 500.0, 250.0, 25.0
FEWEST, NEAR_UM = 5, 20.0
MIXED, APART = 0.60, 0.15  # share of inflammatory nuclei within NEAR_UM of an epithelial one
BINS = (5, 8, 12, 18, 27, 40, 60, 90)


@app.command
def run(folder: Path, *, out: Path, models: str | None = None, seeds: int = 3) -> None:
    """Train each model on the infiltration task, folds by region; of every fold only aggregate numbers are kept."""
    task = infiltration(folder)
    print(f"{len(task.bags)} windows, {sum(b.label or 0 for b in task.bags)} positive", flush=True)
    for name in models.split(",") if models else MODELS:
        print(summary(run_cell(task, name, out, seeds=seeds)), flush=True)


@app.command
def variants(folder: Path) -> None:
    """How many windows other steps and bins of the counts leave, and what shares of types say about them."""
    bins: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "ours": lambda counts: np.digitize(counts, BINS),
        "ten nuclei": lambda counts: counts // 10,
        "fifths": lambda counts: np.stack([np.digitize(c, np.quantile(c, [0.2, 0.4, 0.6, 0.8])) for c in counts.T], 1),
        "powers of two": lambda counts: np.floor(np.log2(counts + 1)).astype(int),
    }
    rule = make_pipeline(StandardScaler(), LogisticRegression())
    for step in (STEP_PX, 2 * STEP_PX):
        found = [bag for bag, _ in all_windows(folder, step)]
        counts = np.stack([bag.features.sum(0).numpy() for bag in found]).astype(int)
        y, regions = np.array([bag.label for bag in found]), np.array([bag.patient_id for bag in found])
        for name, binned in bins.items():
            kept = _matched([(label, *row) for label, row in zip(y.tolist(), binned(counts[:, :3]).tolist())])
            x, own = counts[kept] / counts[kept].sum(1, keepdims=True), y[kept]
            folds = cross_val_predict(rule, x, own, groups=regions[kept], cv=GroupKFold(5), method="predict_proba")
            fitted = rule.fit(x, own).predict_proba(x)
            print(
                f"step {step:g} px, {name}: {len(kept)} of {len(y)} windows, composition in folds by region "
                f"{roc_auc_score(own, folds[:, 1]):.3f}, on its own training windows "
                f"{roc_auc_score(own, fitted[:, 1]):.3f}"
            )


def infiltration(folder: Path) -> Task:
    """The task: 250 px windows, classes matched in the counts of three types, folds by region."""
    return Task("crc", windows(folder), keep_scores=False)


def windows(folder: Path) -> list[Bag]:
    """Windows with at least five nuclei of both types that are clearly mixed (1) or apart (0), matched."""
    found = all_windows(folder, STEP_PX)
    return [found[i][0] for i in _matched([key for _, key in found])]


def all_windows(folder: Path, step: float) -> list[tuple[Bag, tuple[int, ...]]]:
    """The same before they are matched, each with its (label, bins of the three counts)."""
    regions = {row["image"]: row["region"] for row in read_csv(folder / "images.csv")}
    nuclei: dict[str, list[tuple[float, float, int]]] = {}
    with gzip.open(folder / "cells.csv.gz", "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["class"] in KINDS:
                place = float(row["x_px"]), float(row["y_px"]), KINDS.index(row["class"])
                nuclei.setdefault(row["image"], []).append(place)
    return [item for image, rows in nuclei.items() for item in _windows(image, regions[image], np.array(rows), step)]


def _windows(image: str, region: str, nuclei: np.ndarray, step: float) -> list[tuple[Bag, tuple[int, ...]]]:
    """Of one image."""
    found = []
    steps = np.arange(0, SIDE_PX - WINDOW_PX + 1, step)
    for x in steps:
        for y in steps:
            inside = ((nuclei[:, :2] >= (x, y)) & (nuclei[:, :2] < (x + WINDOW_PX, y + WINDOW_PX))).all(1)
            coords, kinds = nuclei[inside, :2] * UM_PER_PX, nuclei[inside, 2].astype(int)
            counts = np.bincount(kinds, minlength=len(KINDS))
            if min(counts[:2]) < FEWEST:
                continue
            gap, _ = KDTree(coords[kinds == 0]).query(coords[kinds == 1])
            share = float((gap <= NEAR_UM).mean())
            if APART < share < MIXED:
                continue
            label = int(share >= MIXED)
            bag = Bag(
                features=torch.eye(len(KINDS))[torch.from_numpy(kinds)], coords=torch.from_numpy(coords).float(),
                unit="um", bag_id=f"{image}-{x:g}-{y:g}", label=label, patient_id=f"region {region}",
            )  # fmt: skip
            found.append((bag, (label, *np.digitize(counts[:3], BINS).tolist())))
    return found


def _matched(keys: Sequence[tuple[int, ...]]) -> list[int]:
    """As many of each class in every bin of counts, drawn at random."""
    rng, kept = np.random.default_rng(0), []
    for bins in sorted({key[1:] for key in keys}):
        sides = [[i for i, key in enumerate(keys) if key == (label, *bins)] for label in (0, 1)]
        size = min(map(len, sides))
        for side in sides:
            kept += rng.choice(side, size, replace=False).tolist() if size else []
    return sorted(kept)


if __name__ == "__main__":
    app()

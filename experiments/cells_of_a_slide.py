"""Make a table of bags with as many cells as a whole slide, from any table of cells: real tissue, repeated with jitter.

Each bag's field of view becomes a mosaic of mirrored copies of itself; every cell moves a little, and a cell keeps its
other columns. Writes cells.csv and labels.csv, for `dasmil train --bags cells.csv --labels labels.csv`.

    python experiments/cells_of_a_slide.py cells.csv.gz labels.csv --bag-column patient --cells 500000 --out big/
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd


def mosaic(table: pd.DataFrame, cells: int, jitter: float, rng: np.random.Generator) -> pd.DataFrame:
    """`cells` rows: mirrored copies side by side in a square, each cell moved by a normal step of size `jitter`."""
    copies = int(np.ceil(cells / len(table)))
    side = int(np.ceil(np.sqrt(copies)))
    place = table[["x", "y"]].to_numpy(float)
    low, extent = place.min(0), np.ptp(place, axis=0) + 1.0
    parts = []
    for number in range(copies):
        cell = np.array(divmod(number, side))
        own = place - low
        own = np.where(cell % 2 == 1, extent - own, own) + cell * extent
        part = table.copy()
        part[["x", "y"]] = np.round(own + rng.normal(0, jitter, own.shape), 2)
        parts.append(part)
    return pd.concat(parts, ignore_index=True).iloc[:cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="CSV with the columns x, y and the bag's, and what describes a cell")
    parser.add_argument("labels", type=Path, help="CSV with the bag's column and label")
    parser.add_argument("--bag-column", default="patient")
    parser.add_argument("--cells", type=int, default=500_000, help="cells of each bag")
    parser.add_argument("--bags", type=int, default=4, help="bags, as many of each class in turn")
    parser.add_argument("--jitter", type=float, default=1.0, help="in the unit of x and y")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    table, labels = pd.read_csv(given.table), pd.read_csv(given.labels)
    labels = labels[labels[given.bag_column].isin(table[given.bag_column].unique())]
    turns = labels.groupby("label").cumcount()  # the first of each class, then the second of each, ...
    chosen = labels.assign(turn=turns).sort_values(["turn", "label"]).drop(columns="turn").head(given.bags)
    given.out.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(chosen[given.bag_column]):
        made = mosaic(table[table[given.bag_column] == name], given.cells, given.jitter, rng)
        made.to_csv(given.out / "cells.csv", index=False, mode="w" if number == 0 else "a", header=number == 0)
    chosen.to_csv(given.out / "labels.csv", index=False)
    print(f"{given.out / 'cells.csv'}: {len(chosen)} bags of {given.cells:,} cells")


if __name__ == "__main__":
    main()

"""100 real breast tumours as tables of cells: they come with the package (see the README here)."""

from __future__ import annotations

import csv
from importlib import resources
from pathlib import Path

import numpy as np

from dasmil.errors import InputError
from dasmil.files import replacing

IMAGES = 100


def write_breast_cohort(folder: str | Path, images: int = IMAGES) -> tuple[Path, Path]:
    """Write cells.csv (image, x_um, y_um, type) and labels.csv (image, patient, age, grade) to a folder.

    grade is "grade 1-2" or "grade 3". images: only the first so many of each grade in turn, for a quick try.
    """
    if not 2 <= images <= IMAGES:
        raise InputError(f"images is {images}, expected 2 to {IMAGES}")
    with resources.files("dasmil.data.breast_imc").joinpath("cells.npz").open("rb") as file:
        stored = dict(np.load(file))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = np.zeros(IMAGES, dtype=bool)
    chosen[_in_turn(stored["grade"] == 3)[:images]] = True
    names = np.array([f"image-{number:03d}" for number in stored["image"]])
    of = np.repeat(np.arange(IMAGES), stored["cells"])
    places = stored["half_um"] / 2
    cells, labels = folder / "cells.csv", folder / "labels.csv"
    with replacing(cells) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "x_um", "y_um", "type"])
        rows = np.flatnonzero(chosen[of])
        columns = (names[of[rows]], *places[:, rows], stored["metacluster"][rows])
        writer.writerows((name, x, y, f"type {kind}") for name, x, y, kind in zip(*columns, strict=True))
    with replacing(labels) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "patient", "age", "grade"])
        for i in np.flatnonzero(chosen):
            grade = "grade 3" if stored["grade"][i] == 3 else "grade 1-2"
            writer.writerow([names[i], f"patient-{stored['patient'][i]:03d}", stored["age"][i], grade])
    return cells, labels


def _in_turn(high: np.ndarray) -> np.ndarray:
    """Numbers of the images, one of each grade in turn while there are any."""
    place = np.empty(len(high))
    for side in (False, True):
        place[high == side] = np.arange((high == side).sum())
    return np.lexsort((high, place))

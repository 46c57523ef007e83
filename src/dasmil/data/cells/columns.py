"""Cells as rows of a table: any CSV, TSV or Parquet file, QuPath's measurements, Xenium's ``cells.parquet``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from dasmil.data.cells.contents import ID_COLUMNS, Cells, bag_column, classes_of, names_of, need_columns
from dasmil.data.frames import first_line, numbers, read_frame
from dasmil.errors import DataError, ScaleError, named
from dasmil.types import Unit

# The micro sign is U+00B5 or U+03BC, and nothing or ? after a detour through another encoding.
_CENTROID = re.compile(r"Centroid ([XY]) (?:(px)|[µμ?�]?m)", re.IGNORECASE)
_QUPATH_CLASSES = ("Classification", "Class")
_QUPATH_PLACES = ("Image", "Object type", "Name", "Parent", "ROI", "TMA core")
XENIUM = "cells.parquet"
_XENIUM_PLACES = ("x_centroid", "y_centroid")


def read_columns(path: Path, bag: str | None, x: str | None, y: str | None) -> Cells:
    """The cells of a table; with x or y given, or without columns that a tool is known by, they are read as named."""
    frame: Any = read_frame(path, bag or "")
    columns = [str(name) for name in frame.columns]
    if x is None and y is None:
        centroids = [found for name in columns if (found := _CENTROID.fullmatch(name.strip()))]
        if centroids:
            return _qupath(path, frame, bag, centroids)
        if set(_XENIUM_PLACES) & set(columns):
            return _xenium(path, frame, bag)
    x, y = x or "x", y or "y"
    need_columns(path, frame, [*([bag] if bag else []), x, y])
    ids = next((name for name in ID_COLUMNS if name in columns and name not in (bag, x, y)), None)
    return Cells(
        path=path,
        rule="table",
        frame=frame,
        coords=_places(frame, x, y),
        unit=None,
        bags=None if bag is None else bag_column(path, frame, bag),
        ids=_ids(path, frame, ids),
        places=frozenset(name for name in (bag, x, y, ids) if name),
    )


def is_qupath(path: Path) -> bool:
    """Whether the first line of a text file names QuPath's centroids (its tables may end in .txt)."""
    return any(_CENTROID.fullmatch(name.strip()) for name in re.split(r"[\t,;]", first_line(path)))


def _qupath(path: Path, frame: Any, bag: str | None, centroids: list[re.Match[str]]) -> Cells:
    units = {"px" if found[2] else "um" for found in centroids}
    axes = sorted(found[1].upper() for found in centroids)
    if len(units) > 1:
        raise ScaleError(
            f"{path}: centroids are given in um and in px ({named(found[0] for found in centroids)}); export x and y "
            "in one unit"
        )
    if axes != ["X", "Y"]:
        raise DataError(f"{path}: centroids are {named(found[0] for found in centroids)}, expected one of x and of y")
    unit: Unit = "px" if "px" in units else "um"
    x, y = (next(found.string for found in centroids if found[1].upper() == axis) for axis in "XY")
    by_name = {str(name).strip(): name for name in frame.columns}
    x, y = by_name[x.strip()], by_name[y.strip()]
    for name in _QUPATH_CLASSES:
        if name in frame.columns:
            frame[name] = classes_of(frame[name])
    whose = bag or ("Image" if "Image" in frame.columns else None)
    ids = next((name for name in ID_COLUMNS if name in frame.columns and name != whose), None)
    return Cells(
        path=path,
        rule=f"QuPath's table of detections, centroids in {unit}",
        frame=frame,
        coords=_places(frame, x, y),
        unit=unit,
        bags=None if whose is None else bag_column(path, frame, whose),
        ids=_ids(path, frame, ids),
        places=frozenset({x, y, *_QUPATH_PLACES, *([whose] if whose else []), *([ids] if ids else [])}),
    )


def _xenium(path: Path, frame: Any, bag: str | None) -> Cells:
    need_columns(path, frame, list(_XENIUM_PLACES), "; expected the table of cells of a Xenium output")
    return Cells(
        path=path,
        rule="Xenium cells, centroids in um",
        frame=frame,
        coords=_places(frame, *_XENIUM_PLACES),
        unit="um",
        bags=None if bag is None else bag_column(path, frame, bag),
        ids=_ids(path, frame, "cell_id" if "cell_id" in frame.columns else None),
        places=frozenset({*_XENIUM_PLACES, "cell_id", *([bag] if bag else [])}),
    )


def _places(frame: Any, x: str, y: str) -> np.ndarray:
    return np.stack([numbers(frame[x]), numbers(frame[y])], axis=1)


def _ids(path: Path, frame: Any, column: str | None) -> np.ndarray | None:
    return None if column is None else names_of(path, column, frame[column].astype(str))


def check_text(path: Path) -> None:
    """Refuse a .txt file that is no table of QuPath: other text is not guessed at."""
    if not is_qupath(path):
        raise DataError(f"{path}: no column such as 'Centroid X µm', expected a table of detections out of QuPath")

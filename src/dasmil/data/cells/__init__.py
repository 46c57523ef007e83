"""Files of cells, told apart by their names and columns: tables, QuPath, GeoJSON, Xenium, AnnData, SpatialData."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dasmil.data.cells.columns import XENIUM, check_text, is_qupath, read_columns
from dasmil.data.cells.contents import Cells
from dasmil.data.cells.geojson import read_geojson
from dasmil.data.cells.spatial import is_zarr, read_spatial
from dasmil.data.formats import SUFFIXES as FEATURE_SUFFIXES
from dasmil.errors import InputError

__all__ = ["SUFFIXES", "Cells", "cell_files", "cells_name", "is_table", "read_cells"]

_GEOJSON = (".geojson", ".geojson.gz")
SUFFIXES = (".csv", ".csv.gz", ".tsv", ".parquet", ".h5ad", *_GEOJSON)


def is_table(path: Path) -> bool:
    """Whether a path is a file of cells, or a folder of such files and not of features."""
    if path.is_file():
        return path.name.lower().endswith(SUFFIXES) or (path.suffix.lower() == ".txt" and is_qupath(path))
    if not path.is_dir():
        return False
    found = list(_walk(path))
    if is_zarr(path) or any(file.name == XENIUM for file in found):  # Xenium keeps .h5 files of its own beside it
        return True
    features = any(file.suffix.lower() in FEATURE_SUFFIXES for file in found)
    return not features and any(map(_holds_cells, found))


def cell_files(path: Path) -> list[Path]:
    """The files of cells that a path stands for, sorted; of Xenium outputs only the tables of cells."""
    if path.is_file() or is_zarr(path):
        return [path]
    found = sorted(filter(_holds_cells, _walk(path)))
    found = [file for file in found if file.name == XENIUM] or found
    if not found:
        raise InputError(f"{path} holds no cells: expected files ending in {', '.join(SUFFIXES)}, or .zarr folders")
    return found


def cells_name(path: Path) -> str:
    """The bag that a file of its own is: its name without the ending, for Xenium that of the output folder."""
    if path.name == XENIUM:
        folder = path.resolve().parent
        return folder.parent.name if folder.name == "outs" else folder.name
    name = path.name
    for suffix in sorted((*SUFFIXES, ".txt", ".zarr"), key=len, reverse=True):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return path.stem


def read_cells(
    path: Path, bag: str | None = None, x: str | None = None, y: str | None = None, one_hot: str | None = None
) -> Cells:
    """The cells of one file; bag, x, y: names of columns, where the file is a table that does not say itself.

    one_hot: the column of types, in place of numbers.
    """
    name = path.name.lower()
    if name.endswith(_GEOJSON):
        return read_geojson(path)
    if path.is_dir() or name.endswith(".h5ad"):
        return read_spatial(path, bag, one_hot)
    if name.endswith(".txt"):
        check_text(path)
    return read_columns(path, bag, x, y)


def _holds_cells(path: Path) -> bool:
    if path.name.lower().endswith(SUFFIXES):
        return True
    return path.suffix.lower() == ".zarr" or (path.suffix.lower() == ".txt" and is_qupath(path))


def _walk(folder: Path) -> Iterator[Path]:
    """Files below a folder, and zarr folders as they are; nothing hidden."""
    for where, folders, files in os.walk(folder):
        here = Path(where)
        yield from (here / name for name in files if not name.startswith("."))
        yield from (here / name for name in folders if is_zarr(here / name))
        folders[:] = [name for name in folders if not name.startswith(".") and not is_zarr(here / name)]

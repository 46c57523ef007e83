"""Cells of AnnData (``.h5ad``, ``.zarr``) and of SpatialData's zarr folders: obsm["spatial"], with its third column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dasmil.data.cells.contents import Cells, bag_column, names_of
from dasmil.data.frames import read_anndata
from dasmil.data.zarr_folder import need_pieces, open_table
from dasmil.errors import DataError, named

_MARKS = (".zgroup", ".zattrs", "zarr.json")


def is_zarr(path: Path) -> bool:
    """Whether a folder is a zarr group, by its name and its own description."""
    return path.suffix.lower() == ".zarr" and path.is_dir() and any((path / mark).is_file() for mark in _MARKS)


def read_spatial(path: Path, bag: str | None, one_hot: str | None = None) -> Cells:
    """The cells of an AnnData file, or of the one table of a SpatialData folder; one_hot: the column of types."""
    table: Path | None = None
    if path.is_dir():
        table = _table(path)
        kind = "AnnData (zarr)" if table == path else f"SpatialData, table {table.name}"
        data = open_table(table)
    else:
        kind, data = "AnnData", read_anndata(path)
    if "spatial" not in data.obsm:
        raise DataError(f"{path}: no obsm['spatial'] (it has {named(data.obsm.keys())}): cells need positions")
    coords = plain_numbers(path, "obsm['spatial']", data.obsm["spatial"])
    if coords.ndim != 2 or coords.shape[1] not in (2, 3):
        raise DataError(f"{path}: obsm['spatial'] has shape {coords.shape}, expected [cells, 2] or [cells, 3]")
    region = _region_column(data)
    if table is not None:
        used = ["obsm/spatial", f"obs/{data.obs.index.name or '_index'}"]
        used += [f"obs/{name}" for name in (bag, one_hot, region) if name is not None]
        used += ["X", f"var/{data.var.index.name or '_index'}"] if one_hot is None else []
        need_pieces(table, used)
    # Each region is a bag where a table of SpatialData covers several.
    whose = bag or (region if region is not None and data.obs[region].nunique() > 1 else None)
    return Cells(
        path=path,
        rule=kind + (", three dimensions" if coords.shape[1] == 3 else ""),
        frame=data.obs,
        coords=coords.astype(np.float64),
        unit=None,
        bags=None if whose is None else bag_column(path, data.obs, whose),
        ids=names_of(path, "obs_names", data.obs_names.astype(str)),
        matrix=data.X if data.X is not None else np.empty((len(coords), 0)),
        names=tuple(str(name) for name in data.var_names),
    )


def plain_numbers(path: Path, what: str, values: Any) -> np.ndarray:
    """An array of numbers, and nothing else."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise DataError(f"{path}: {what} holds {array.dtype}, expected numbers")
    return array


def _region_column(data: Any) -> str | None:
    """SpatialData's column of regions."""
    about = data.uns.get("spatialdata_attrs", {})
    column = about.get("region_key") if hasattr(about, "get") else None
    return column if isinstance(column, str) and column in data.obs.columns else None


def _table(path: Path) -> Path:
    """The folder of the table: of SpatialData its only one, of AnnData the folder itself."""
    if (path / "obs").is_dir():
        return path
    tables = path / "tables"
    found = sorted(item for item in tables.iterdir() if (item / "obs").is_dir()) if tables.is_dir() else []
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(
            f"{path} has the tables {named(item.name for item in found)}: keep one of them, or save the one to use as "
            "AnnData (.h5ad)"
        )
    held = named(sorted(item.name for item in path.iterdir() if not item.name.startswith(".")))
    raise DataError(f"{path} holds {held}, expected AnnData (obs, obsm, X) or SpatialData with a table of cells")

"""Cells of AnnData (``.h5ad``, ``.zarr``) and of SpatialData's zarr folders: obsm["spatial"], with its third column."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from dasmil.data.cells.contents import Cells, bag_column, names_of
from dasmil.data.frames import BELIEVED_BYTES, BELIEVED_RATIO, read_anndata, unreadable
from dasmil.data.memory import need_memory
from dasmil.errors import DataError, MissingDependencyError, named

_WHOLE = ("obsm/spatial", "X/data", "X/indices", "X/indptr")
_MARKS = (".zgroup", ".zattrs", "zarr.json")


def is_zarr(path: Path) -> bool:
    """Whether a folder is a zarr group, by its name and its own description."""
    return path.suffix.lower() == ".zarr" and path.is_dir() and any((path / mark).is_file() for mark in _MARKS)


def read_spatial(path: Path, bag: str | None) -> Cells:
    """The cells of an AnnData file, or of the one table of a SpatialData folder."""
    if path.is_dir():
        table = _table(path)
        kind = "AnnData (zarr)" if table == path else f"SpatialData, table {table.name}"
        data = _read_zarr(table)
    else:
        kind, data = "AnnData", read_anndata(path)
    if "spatial" not in data.obsm:
        raise DataError(f"{path}: no obsm['spatial'] (it has {named(data.obsm.keys())}): cells need positions")
    coords = plain_numbers(path, "obsm['spatial']", data.obsm["spatial"])
    if coords.ndim != 2 or coords.shape[1] not in (2, 3):
        raise DataError(f"{path}: obsm['spatial'] has shape {coords.shape}, expected [cells, 2] or [cells, 3]")
    whose = bag or _regions(data)
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


def _regions(data: Any) -> str | None:
    """SpatialData's column of regions, where a table covers several of them: each is a bag."""
    about = data.uns.get("spatialdata_attrs", {})
    column = about.get("region_key") if hasattr(about, "get") else None
    if not isinstance(column, str) or column not in data.obs.columns or data.obs[column].nunique() < 2:
        return None
    return column


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


def _read_zarr(table: Path) -> Any:
    try:
        import anndata
        import zarr
    except ImportError:
        raise MissingDependencyError("anndata and zarr", "tables", "Reading zarr folders") from None
    _check_sizes(table)
    _check_chunks(table, zarr)
    try:
        data: Any = anndata.read_zarr(table)
        if hasattr(data.X, "check_format"):
            data.X.check_format(full_check=True)
    except Exception as error:  # zarr, its codecs, anndata's registry and scipy have errors of their own
        raise unreadable(table, "AnnData", error) from None
    return data


def _check_sizes(table: Path) -> None:
    """Refuse arrays that declare far more than is stored: missing chunks are filled without a word."""
    declared, stored = 0, 0
    for path in table.rglob("*"):
        if path.is_symlink():
            raise DataError(f"{path} is a link, which is not followed: copy the data into the folder")
        if path.is_dir():
            continue
        if not path.is_file():
            raise DataError(f"{path} is a pipe or a device, expected a file: copy the data into the folder")
        stored += path.stat().st_size
        if path.name in (".zarray", ".zmetadata", "zarr.json"):
            declared += _declared(path)
    if declared > max(BELIEVED_BYTES, BELIEVED_RATIO * stored):
        raise DataError(f"{table} declares {declared:,} bytes, but only {stored:,} bytes are stored; save it again")
    need_memory(table, "its table", declared)


def _check_chunks(table: Path, zarr: Any) -> None:
    """Refuse positions and sparse parts that lack a piece: zarr puts zeros where a file is missing."""
    try:
        group: Any = zarr.open_group(str(table), mode="r")
        for name in _WHOLE:
            if name in group and hasattr(group[name], "nchunks"):
                stored, expected = group[name].nchunks_initialized, group[name].nchunks
                if stored < expected:
                    raise DataError(f"{table}: {name} has {stored} of {expected} pieces; copy or save it again")
    except DataError:
        raise
    except Exception as error:  # zarr and its codecs have errors of their own
        raise unreadable(table, "AnnData", error) from None


def _declared(path: Path) -> int:
    """Bytes of the arrays that a description declares, also those of a whole group that is described at once."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return _array_bytes(about)
    except (ValueError, TypeError, OSError, RecursionError):
        raise DataError(f"{path} is damaged: it is no description of arrays; save the data again") from None


def _array_bytes(about: Any) -> int:
    if isinstance(about, list):
        return sum(map(_array_bytes, about))
    if not isinstance(about, dict):
        return 0
    shape = about.get("shape")
    if isinstance(shape, list) and shape:
        return 8 * max(prod(map(_side, shape)), prod(map(_side, _chunk(about))))
    return sum(map(_array_bytes, about.values()))


def _chunk(about: dict[str, Any]) -> list[Any]:
    """The shape of one piece of an array (zarr 2, zarr 3): as much is allocated for each, however small the array."""
    grid = about.get("chunk_grid")
    inner = grid.get("configuration") if isinstance(grid, dict) else None
    found = inner.get("chunk_shape") if isinstance(inner, dict) else about.get("chunks")
    return found if isinstance(found, list) else []


def _side(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"a side of an array is {value!r}")
    return value

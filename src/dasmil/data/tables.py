"""Cells instead of tiles: bags from CSV and Parquet tables and from AnnData files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dasmil.data.frames import numbers, read_anndata, read_frame
from dasmil.data.memory import need_memory
from dasmil.errors import DataError, InputError, named, shown
from dasmil.types import Bag, Unit

if TYPE_CHECKING:
    import pandas as pd

MOST_CATEGORIES = 2000
TABLE_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".parquet", ".h5ad")


def is_table(path: Path) -> bool:
    """Whether a path is one file that holds many bags, by its name."""
    return path.is_file() and path.name.lower().endswith(TABLE_SUFFIXES)


def read_table(
    path: str | Path,
    *,
    bag: str,
    unit: str,
    x: str = "x",
    y: str = "y",
    features: Sequence[str] | None = None,
    one_hot: str | None = None,
    um_per_unit: float | None = None,
    categories: Sequence[str] | None = None,
) -> list[Bag]:
    """One bag for each value of the column ``bag``.

    unit: what the positions count, 'um', or 'px' with ``um_per_unit`` (a scanner's um per pixel).
    features: columns to use as they are (default: all other columns of numbers); one_hot: a column of k categories,
    whose marks are sqrt(3 k), so that a first linear layer gives outputs of variance one.
    Exactly one of the two. AnnData: positions from obsm["spatial"], features from X, or one_hot from an obs column.
    categories: the feature names of another table (a model's training data), whose order must be kept: those of the
    one_hot column, else the columns of numbers to use.
    """
    path = Path(path)
    factor = _factor(path, unit, um_per_unit)
    if not path.is_file():
        raise InputError(f"no table {path}")
    if features is not None and one_hot is not None:
        raise InputError("features and one_hot were both given: choose the columns of numbers or the category column")
    if categories is not None and one_hot is None:
        features = categories
    if path.name.lower().endswith(".h5ad"):
        ids, coords, values, names, kinds, own = _read_anndata(path, bag, features, one_hot, categories)
    else:
        ids, coords, values, names, kinds, own = _read_frame(path, bag, x, y, features, one_hot, categories)
    bad = ~np.isfinite(coords).all(axis=1)
    if bad.any():
        raise DataError(
            f"{path}: {int(bad.sum())} rows have no position, the first in bag {shown(str(ids[bad][0]))}; "
            "remove or repair them"
        )
    if not len(ids):
        raise DataError(f"{path} has no rows, expected one for each cell")
    metadata: dict[str, Any] = {"feature_names": names, "coords_rule": f"table: {unit} x {factor:g} um"}
    if kinds is not None:
        metadata["instance_label_names"] = names
    found: list[Bag] = []
    order, inverse = np.unique(ids, return_inverse=True)
    rows_of = np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])
    for name, rows in zip(order, rows_of):
        found.append(
            Bag(
                features=torch.from_numpy(np.ascontiguousarray(values[rows], dtype=np.float32)),
                coords=torch.from_numpy(np.ascontiguousarray(coords[rows] * factor, dtype=np.float32)),
                unit="um",
                bag_id=str(name),
                instance_labels=None if kinds is None else torch.from_numpy(kinds[rows].astype(np.int64)),
                metadata=metadata,
                instance_ids=None if own is None else tuple(own[rows].tolist()),
            )
        )
    return found


def _factor(path: Path, unit: str, um_per_unit: float | None) -> float:
    known: tuple[Unit, ...] = ("um", "px")
    if unit not in known:
        raise InputError(f"unit is {unit!r}, expected 'um' or 'px' (with the um of one pixel)")
    if unit == "um":
        if um_per_unit not in (None, 1.0):
            raise InputError(f"unit is um, but one unit was given as {um_per_unit:g} um; use unit px for pixels")
        return 1.0
    if um_per_unit is None:
        raise InputError(f"{path}: positions are in pixels; give the micrometres of one pixel with --mpp")
    if not (np.isfinite(um_per_unit) and um_per_unit > 0):
        raise InputError(f"mpp is {um_per_unit!r}, expected a positive number")
    return um_per_unit


_TRAINED = "; the model was trained with it, so add it (the order of columns does not matter)"
_Parts = tuple[np.ndarray, np.ndarray, np.ndarray, list[str], np.ndarray | None, np.ndarray | None]
ID_COLUMNS = ("instance_id", "cell_id", "object_id", "Object ID", "CellID", "cell", "id")
"""Columns whose values name the rows; the first of them is kept as the instances' ids and is no feature."""


def _read_frame(
    path: Path,
    bag: str,
    x: str,
    y: str,
    features: Sequence[str] | None,
    one_hot: str | None,
    categories: Sequence[str] | None,
) -> _Parts:
    frame: Any = read_frame(path, bag)
    _need(path, frame, [bag, x, y])
    coords = np.stack([numbers(frame[x]), numbers(frame[y])], axis=1)
    ids = _ids(path, frame[bag])
    taken = {bag, x, y, one_hot, *(features or ())}
    id_column = next((name for name in ID_COLUMNS if name in frame.columns and name not in taken), None)
    own = None if id_column is None else frame[id_column].astype(str).to_numpy(dtype=str)
    if one_hot is not None:
        _need(path, frame, [one_hot])
        values, names, kinds = _one_hot(path, frame[one_hot], categories)
        return ids, coords, values, names, kinds, own
    if features is None:
        kinds = zip(frame.columns, frame.dtypes)
        names = [str(name) for name, dtype in kinds if name not in (bag, x, y, id_column) and dtype.kind in "fiub"]
        if not names:
            raise InputError(
                f"{path}: no columns of numbers besides {x} and {y} among {named(frame.columns)}; "
                "name the category column with --one-hot"
            )
    else:
        names = list(features)
        if not names:
            raise InputError("features were given as an empty list, expected the names of at least one column")
        _need(path, frame, names, _TRAINED if categories is not None else "")
    need_memory(path, "the columns of features", 4 * len(frame) * len(names))
    block = np.empty((len(frame), len(names)), dtype=np.float32)
    for i, name in enumerate(names):
        with np.errstate(over="ignore"):
            block[:, i] = numbers(frame[name])
        if not np.isfinite(block[:, i]).all():
            raise DataError(
                f"{path}: the feature column {shown(name)} holds empty or non-numeric values; fill or drop it"
            )
    return ids, coords, block, names, None, own


def _read_anndata(
    path: Path, bag: str, features: Sequence[str] | None, one_hot: str | None, categories: Sequence[str] | None
) -> _Parts:
    data = read_anndata(path)
    if "spatial" not in data.obsm:
        raise DataError(f"{path}: no obsm['spatial'] (it has {named(data.obsm.keys())}): cells need positions")
    coords = _plain_numbers(path, "obsm['spatial']", data.obsm["spatial"])
    if coords.ndim != 2 or coords.shape[1] < 2:
        raise DataError(f"{path}: obsm['spatial'] has shape {coords.shape}, expected [cells, 2]")
    coords = coords[:, :2].astype(np.float64)
    _need(path, data.obs, [bag])
    ids = _ids(path, data.obs[bag])
    own = data.obs_names.to_numpy(dtype=str)
    if one_hot is not None:
        _need(path, data.obs, [one_hot])
        values, names, kinds = _one_hot(path, data.obs[one_hot], categories)
        return ids, coords, values, names, kinds, own
    if data.X is None:
        raise InputError(f"{path}: X is empty, so there are no features: name a column of categories with --one-hot")
    names = [str(name) for name in data.var_names]
    if features is not None and list(features) != names:
        unknown = [name for name in features if name not in names]
        if unknown:
            hint = _TRAINED if categories is not None else ""
            raise InputError(f"{path}: no variable {shown(unknown[0])} among the {len(names)} of X{hint}")
        places = [names.index(name) for name in features]
        twice = [name for name in features if names.count(name) > 1]
        if twice:
            raise DataError(f"{path}: {shown(twice[0])} names several variables of X; rename them")
        block, names = data.X[:, places], list(features)
    else:
        block = data.X
    if not names or not len(ids):
        raise DataError(f"{path}: X has shape {tuple(block.shape)}, expected cells with at least one variable")
    need_memory(path, "X", 4 * len(ids) * len(names))
    dense = _plain_numbers(path, "X", block.toarray() if hasattr(block, "toarray") else block)
    if not np.isfinite(dense).all():
        raise DataError(f"{path}: X holds NaN or infinite values; fill or drop them")
    return ids, coords, np.asarray(dense, dtype=np.float32), names, None, own


def _plain_numbers(path: Path, what: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise DataError(f"{path}: {what} holds {array.dtype}, expected numbers")
    return array


def _one_hot(
    path: Path, column: pd.Series, categories: Sequence[str] | None
) -> tuple[np.ndarray, list[str], np.ndarray]:
    text = column.astype("string")
    if text.isna().any():
        raise DataError(f"{path}: {int(text.isna().sum())} rows have no value in {column.name!r}; fill or drop them")
    values = [str(value) for value in text]
    names = sorted(set(values)) if categories is None else list(categories)
    if len(names) > MOST_CATEGORIES:
        raise DataError(
            f"{path}: {column.name!r} holds {len(names):,} different values, expected at most {MOST_CATEGORIES:,} "
            "categories; is it the column of names?"
        )
    need_memory(path, "one mark per cell and category", 4 * len(values) * len(names))
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise DataError(f"{path}: {column.name!r} holds {shown(unknown[0])}, expected one of {named(names)}")
    number = {name: i for i, name in enumerate(names)}
    kinds = np.array([number[value] for value in values], dtype=np.int64)
    # The mark is sqrt(3 k) and not 1, so that the first linear layer, started as PyTorch does (variance 1 / (3 k)),
    # gives outputs of variance one: with marks of 1 no run on cells got away from its start.
    marks = np.float32(np.sqrt(3 * len(names))) * np.eye(len(names), dtype=np.float32)
    return marks[kinds], names, kinds


def _ids(path: Path, column: pd.Series) -> np.ndarray:
    if column.isna().any():
        raise DataError(f"{path}: {int(column.isna().sum())} rows have no value in the bag column {column.name!r}")
    return column.astype(str).to_numpy(dtype=str)


def _need(path: Path, frame: pd.DataFrame, columns: Sequence[str], hint: str = "") -> None:
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise InputError(f"{path}: no column {shown(missing[0])}; it has {named(frame.columns)}{hint}")

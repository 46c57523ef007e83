"""Cells instead of tiles: bags from files of cells, one file with many bags or one file for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dasmil.data.cells import Cells, cell_files, cells_name, is_table, read_cells
from dasmil.data.cells.contents import need_columns
from dasmil.data.cells.spatial import plain_numbers
from dasmil.data.frames import numbers
from dasmil.data.labels import plain_slide
from dasmil.data.memory import need_memory
from dasmil.data.scale import Scales
from dasmil.data.sections import Fields, overlaid_fields
from dasmil.errors import DataError, InputError, ScaleError, named, shown
from dasmil.types import Bag, Unit

__all__ = ["is_table", "read_table"]

MOST_CATEGORIES = 2000
_TRAINED = "; the model was trained with it, so add it (the order of columns does not matter)"


def read_table(
    path: str | Path,
    *,
    bag: str | None = None,
    unit: str | None = None,
    x: str | None = None,
    y: str | None = None,
    features: Sequence[str] | None = None,
    one_hot: str | None = None,
    um_per_unit: float | None = None,
    scales: Scales | None = None,
    categories: Sequence[str] | None = None,
) -> list[Bag]:
    """One bag for each value of the column ``bag``, or for each file of a folder.

    unit: what the positions count, 'um', or 'px' with ``um_per_unit`` (a scanner's um per pixel) or the ``scales`` of
    slides that differ; only where the files do not say it themselves. x, y: names of columns (default: x and y).
    features: columns to use as they are (default: all other columns of numbers); one_hot: a column of k categories,
    whose marks are sqrt(3 k), so that a first linear layer gives outputs of variance one.
    Exactly one of the two. AnnData: positions from obsm["spatial"], features from X, or one_hot from an obs column.
    categories: the feature names of another table (a model's training data), whose order must be kept: those of the
    one_hot column, else the columns of numbers to use.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"no table {path}")
    if features is not None and one_hot is not None:
        raise InputError("features and one_hot were both given: choose the columns of numbers or the category column")
    files = cell_files(path)
    parts = [read_cells(file, bag, x, y, one_hot) for file in files]
    if path.is_file() and parts[0].bags is None and parts[0].rule.startswith(("table", "AnnData")):
        raise InputError(f"{path} is a table of cells: name its bag column with --bag-column and the --unit")
    found_unit = _unit(parts, unit)
    scales = scales or Scales()
    if categories is not None and one_hot is None:
        features = categories
    named = [*(features or ()), *([one_hot] if one_hot is not None else [])]
    fields = {cells.path: found for cells in parts if (found := overlaid_fields(cells, named)) is not None}
    parts = [_without(cells, fields.get(cells.path)) for cells in parts]
    if one_hot is not None:
        names = _categories(parts, one_hot, categories)
    else:
        names = _names(parts, features, _TRAINED if categories is not None else "")
    bags: dict[str, Bag] = {}
    for cells in parts:
        values, kinds = _one_hot(cells, one_hot, names) if one_hot is not None else (_numbers(cells, names), None)
        metadata: dict[str, Any] = {"feature_names": names}
        if kinds is not None:
            metadata["instance_label_names"] = names
        for name, rows in _rows_of(cells):
            if name in bags:
                raise DataError(f"{cells.path}: bag {shown(name)} is in another file of {path} too; keep one of them")
            factor = _factor(cells, found_unit, um_per_unit, scales, name)
            bags[name] = Bag(
                features=torch.from_numpy(np.ascontiguousarray(values[rows], dtype=np.float32)),
                coords=torch.from_numpy(np.ascontiguousarray(cells.coords[rows] * factor, dtype=np.float32)),
                unit="um",
                bag_id=name,
                instance_labels=None if kinds is None else torch.from_numpy(kinds[rows].astype(np.int64)),
                **_sections(fields.get(cells.path), rows, {**metadata, **_placed(cells, found_unit, factor)}),
                instance_ids=None if cells.ids is None else tuple(cells.ids[rows].tolist()),
            )
    return [bags[name] for name in sorted(bags)]


def _without(cells: Cells, fields: Fields | None) -> Cells:
    """The same cells; the column that tells fields is no feature."""
    return cells if fields is None else replace(cells, places=cells.places | {fields.column})


def _sections(fields: Fields | None, rows: np.ndarray, metadata: dict[str, Any]) -> dict[str, Any]:
    """Fields that lie on each other as sections, and the metadata that names them; of one field alone neither."""
    if fields is None:
        return {"metadata": metadata}
    found, section = np.unique(fields.numbers[rows], return_inverse=True)
    rule = f"{metadata['coords_rule']}; fields of {shown(fields.column)} lie on each other: each is a section"
    names = [fields.names[number] for number in found]
    told = {**metadata, "coords_rule": rule, "section_names": names}
    return {"metadata": told, "section": torch.from_numpy(section.astype(np.int64))}


def _placed(cells: Cells, unit: Unit, factor: float) -> dict[str, Any]:
    """How positions became micrometres; with the scale of pixels, so that they can be given back in them."""
    return {"coords_rule": f"{cells.rule}: {unit} x {factor:g} um"} | ({"mpp": factor} if unit == "px" else {})


def _rows_of(cells: Cells) -> list[tuple[str, np.ndarray]]:
    """The bags of a file with their rows, in the order of their names."""
    if cells.bags is None:
        return [(cells_name(cells.path), np.arange(len(cells.coords)))]
    import pandas

    codes, found = pandas.factorize(cells.bags)  # sorting the few names is quick, sorting those of all cells is not
    order = np.argsort(np.asarray(found, dtype=str), kind="stable")
    inverse = np.argsort(order)[codes]
    rows = np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])
    return [(str(name), places) for name, places in zip(np.asarray(found, dtype=str)[order], rows)]


def _unit(parts: Sequence[Cells], given: str | None) -> Unit:
    """The one unit of all files: as they declare it, else as given."""
    known: dict[str, Unit] = {"um": "um", "px": "px"}
    if given is not None and given not in known:
        raise InputError(f"unit is {given!r}, expected 'um' or 'px' (with the um of one pixel)")
    declared = {cells.unit: cells for cells in parts}
    if len(declared) > 1:
        first, second = list(declared.values())[:2]
        words = [f"{cells.path} in {cells.unit or 'a unit that it does not name'}" for cells in (first, second)]
        raise ScaleError(f"positions are in several units: {' and '.join(words)}; export all files alike")
    cells = parts[0]
    unit = cells.unit
    if unit is None:
        if given is None:
            raise InputError(f"{cells.path} does not say what its positions count: give --unit um, or --unit px --mpp")
        return known[given]
    if given is not None and given != unit:
        raise ScaleError(f"{cells.path}: its positions are in {unit}, but --unit {given} was given; leave it out")
    return unit


def _factor(cells: Cells, unit: Unit, um_per_unit: float | None, scales: Scales, bag: str) -> float:
    """The micrometres of one unit."""
    listed = plain_slide(bag) in scales.table
    um = scales.of(bag).mpp if listed or um_per_unit is None else um_per_unit
    if unit == "um":
        if um not in (None, 1.0):
            raise InputError(f"unit is um, but one unit was given as {um:g} um; use unit px for pixels")
        return 1.0
    if cells.coords.shape[1] == 3:
        raise InputError(
            f"{cells.path}: positions of three dimensions are in pixels, and the um per pixel says nothing of the "
            "third; store all three in um and give --unit um"
        )
    if um is None:
        raise InputError(f"{cells.path}: positions are in pixels; give the micrometres of one pixel with --mpp")
    if not (np.isfinite(um) and um > 0):
        raise InputError(f"mpp is {um!r}, expected a positive number")
    return um


def _names(parts: Sequence[Cells], features: Sequence[str] | None, hint: str) -> list[str]:
    """The columns of numbers to use: as named, else all of the first file, which the others must have too."""
    if features is not None:
        if not list(features):
            raise InputError("features were given as an empty list, expected the names of at least one column")
        return list(_checked(parts, list(features), hint))
    first = parts[0]
    if first.matrix is not None:
        names = list(first.names)
        if not names:
            raise InputError(
                f"{first.path}: X is empty, so there are no features: name a column of categories with --one-hot"
            )
    else:
        columns = zip(first.frame.columns, first.frame.dtypes)
        names = [str(name) for name, dtype in columns if name not in first.places and dtype.kind in "fiub"]
        if not names:
            others = [name for name in first.frame.columns if name not in ("x", "y")]
            raise InputError(
                f"{first.path}: no columns of numbers besides positions among {named(others)}; "
                "name the category column with --one-hot"
            )
    return _checked(parts[1:], names, f"; {first.path} has it") if len(parts) > 1 else names


def _checked(parts: Sequence[Cells], names: list[str], hint: str) -> list[str]:
    for cells in parts:
        if cells.matrix is None:
            need_columns(cells.path, cells.frame, names, hint)
            continue
        unknown = [name for name in names if name not in cells.names]
        if unknown:
            raise InputError(f"{cells.path}: no variable {shown(unknown[0])} among the {len(cells.names)} of X{hint}")
        twice = [name for name in names if cells.names.count(name) > 1]
        if twice and list(cells.names) != names:
            raise DataError(f"{cells.path}: {shown(twice[0])} names several variables of X; rename them")
    return names


def _numbers(cells: Cells, names: list[str]) -> np.ndarray:
    """The named columns [n, f], finite."""
    need_memory(cells.path, "the columns of features", 4 * len(cells.coords) * len(names))
    if cells.matrix is not None:
        places = {name: i for i, name in enumerate(cells.names)}
        block = cells.matrix if list(cells.names) == names else cells.matrix[:, [places[name] for name in names]]
        dense = plain_numbers(cells.path, "X", block.toarray() if hasattr(block, "toarray") else block)
        if not np.isfinite(dense).all():
            raise DataError(f"{cells.path}: X holds NaN or infinite values; fill or drop them")
        return np.asarray(dense, dtype=np.float32)
    block = np.empty((len(cells.coords), len(names)), dtype=np.float32)
    frame: Any = cells.frame
    for i, name in enumerate(names):
        with np.errstate(over="ignore"):
            block[:, i] = numbers(frame[name])
        if not np.isfinite(block[:, i]).all():
            raise DataError(
                f"{cells.path}: the feature column {shown(name)} holds empty or non-numeric values; fill or drop it"
            )
    return block


def _coded(cells: Cells, column: str) -> tuple[np.ndarray, list[str]]:
    """The categories of a column in the order in which they occur, and the number of each cell's among them [n]."""
    frame: Any = cells.frame
    need_columns(cells.path, frame, [column])
    text = frame[column].astype("string")
    if text.isna().any():
        raise DataError(f"{cells.path}: {int(text.isna().sum())} rows have no value in {column!r}; fill or drop them")
    codes, found = text.factorize()  # a million cells have a dozen different texts: no Python object for each cell
    return np.asarray(codes, dtype=np.int64), [str(value) for value in found]


def _categories(parts: Sequence[Cells], column: str, categories: Sequence[str] | None) -> list[str]:
    """The categories in their order: those of a model, else all that occur in any file."""
    if categories is not None:
        return list(categories)
    found: set[str] = set()
    for cells in parts:
        found |= set(_coded(cells, column)[1])
        if len(found) > MOST_CATEGORIES:
            raise DataError(
                f"{cells.path}: {column!r} holds {len(found):,} different values, expected at most "
                f"{MOST_CATEGORIES:,} categories; is it the column of names?"
            )
    return sorted(found)


def _one_hot(cells: Cells, column: str, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Marks [n, k] and numbers [n] of the categories."""
    codes, values = _coded(cells, column)
    need_memory(cells.path, "one mark per cell and category", 4 * len(codes) * len(names))
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise DataError(f"{cells.path}: {column!r} holds {shown(unknown[0])}, expected one of {named(names)}")
    number = {name: i for i, name in enumerate(names)}
    kinds = np.array([number[value] for value in values], dtype=np.int64)[codes]
    # The mark is sqrt(3 k) and not 1, so that the first linear layer, started as PyTorch does (variance 1 / (3 k)),
    # gives outputs of variance one: with marks of 1 no run on cells got away from its start.
    marks = np.float32(np.sqrt(3 * len(names))) * np.eye(len(names), dtype=np.float32)
    return marks[kinds], kinds

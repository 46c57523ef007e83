"""What every reader of cells hands back: where they are, in which unit, and what is known of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dasmil.errors import DataError, InputError, named, shown
from dasmil.types import Unit

if TYPE_CHECKING:
    import pandas as pd

UNCLASSIFIED = "Unclassified"
"""What QuPath calls an object without a class."""
MOST_CHARACTERS = 1_000
ID_COLUMNS = ("instance_id", "cell_id", "object_id", "Object ID", "CellID", "cell", "id")
"""Columns whose values name the rows; the first of them is kept as the instances' ids and is no feature."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of one file: positions [n, 2] or [n, 3], the bag of each, and a table of what is known of them.

    unit: as the file declares it, None where it does not say; bags: None if the file is one bag and has its name;
    places: columns that say where or whose a cell is and are no features. matrix, names: AnnData's X, in place of
    columns. rule: the kind of file, and what was left out of it.
    """

    path: Path
    rule: str
    frame: pd.DataFrame
    coords: np.ndarray
    unit: Unit | None
    bags: np.ndarray | None
    ids: np.ndarray | None = None
    places: frozenset[str] = frozenset()
    matrix: Any = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.coords):
            raise DataError(f"{self.path} has no rows, expected one for each cell")
        bad = ~np.isfinite(self.coords).all(axis=1)
        if bad.any():
            where = "" if self.bags is None else f", the first in bag {shown(str(self.bags[bad][0]))}"
            raise DataError(f"{self.path}: {int(bad.sum())} rows have no position{where}; remove or repair them")


def need_columns(path: Path, frame: pd.DataFrame, columns: tuple[str, ...] | list[str], hint: str = "") -> None:
    """Refuse a table that lacks one of these columns."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise InputError(f"{path}: no column {shown(missing[0])}; it has {named(frame.columns)}{hint}")


def bag_column(path: Path, frame: pd.DataFrame, name: str) -> np.ndarray:
    """The bag of every row, as text."""
    need_columns(path, frame, [name])
    column: Any = frame[name]
    if column.isna().any():
        raise DataError(f"{path}: {int(column.isna().sum())} rows have no value in the bag column {name!r}")
    codes, found = column.astype(str).factorize()
    return names_of(path, name, found)[codes]


def names_of(path: Path, what: str, values: Iterable[str]) -> np.ndarray:
    """Names as an array; NumPy keeps as many characters for each as the longest has, so a long one is refused."""
    text = list(values)
    longest = max(map(len, text), default=0)
    if longest > MOST_CHARACTERS:
        raise DataError(
            f"{path}: a value of {shown(what)} has {longest:,} characters, expected a name of at most "
            f"{MOST_CHARACTERS:,}"
        )
    return np.array(text, dtype=str)


def classes_of(column: pd.Series) -> pd.Series:
    """A column of classes in which cells without one have QuPath's name for it."""
    text = column.astype("string").str.strip()
    return text.mask(text.isna() | (text == ""), UNCLASSIFIED).astype(str)

"""The users' own names of instances in a bag file: one dataset of texts, a row for each instance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np

from dasmil.errors import DataError

IDS = "instance_ids"


def id_array(ids: Sequence[str]) -> np.ndarray:
    """The names as HDF5 keeps them."""
    return np.array([name.encode("utf-8", "surrogatepass") for name in ids], dtype=h5py.string_dtype())


def read_ids(path: Path, file: h5py.File) -> tuple[str, ...] | None:
    """The names, or None where the file has none."""
    item = file.get(IDS)
    if item is None:
        return None
    if not isinstance(item, h5py.Dataset) or h5py.check_string_dtype(item.dtype) is None or item.ndim != 1:
        raise DataError(f"{path}: {IDS} is no list of texts, expected one name for each instance")
    return tuple(name.decode("utf-8", "replace") for name in item[...])

"""Which slides are done: every feature file says what it was made with and from."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import h5py
import numpy as np

from dasmil.data.export import export_bag
from dasmil.data.layouts import Format
from dasmil.data.store import open_h5, write_bag
from dasmil.engine.locks import LockState, clear_dead, file_lock
from dasmil.errors import DataError
from dasmil.files import replacing
from dasmil.types import Bag

MARKS = ("config_hash", "source_fingerprint")
_WRITTEN = (("", "h5"), ("qc", "jpg"), ("qc", "json"))  # folder and ending of a slide's files


def save_features(path: Path, bag: Bag, format: Format) -> None:
    """Write a bag in the wanted layout; it appears only when complete, with the marks in its root attributes."""
    if format == "dasmil":
        write_bag(path, bag)
        return
    with replacing(path) as temporary:
        export_bag(bag, temporary, format)
        with h5py.File(temporary, "r+", locking=False) as file:
            for name in (*MARKS, "mpp", "tile_um"):  # CLAM's and TRIDENT's layouts have no place for the scale
                file.attrs[f"dasmil_{name}"] = bag.metadata[name]


def read_marks(path: Path) -> tuple[str, str] | None:
    """Configuration hash and source fingerprint of a feature file; None if it is damaged or made by another tool."""
    try:
        with open_h5(path) as file:
            found = [file.attrs.get(name, file.attrs.get(f"dasmil_{name}")) for name in MARKS]
    except DataError:
        return None
    return (str(found[0]), str(found[1])) if all(value is not None for value in found) else None


def count_tiles(path: Path) -> tuple[int, float | None]:
    """How many tiles a finished feature file holds, and the slide's um per pixel where the layout keeps it."""
    with open_h5(path) as file:
        coords, mpp = file.get("coords"), file.attrs.get("mpp", file.attrs.get("dasmil_mpp"))
        tiles = len(coords) if isinstance(coords, h5py.Dataset) and coords.shape else 0
        return tiles, float(mpp) if isinstance(mpp, int | float | np.number) else None


def slide_lock(out_dir: Path, name: str) -> AbstractContextManager[LockState]:
    """The lock under which a slide's files are written."""
    return file_lock(out_dir / f".{name}.lock")


def remove_leftovers(out_dir: Path, name: str) -> None:
    """Remove temporary files of a process that was killed while it wrote a slide's; only under the slide's lock."""
    for folder, ending in _WRITTEN:
        for leftover in (out_dir / folder).glob(f".{_escaped(name)}.{ending}.*.tmp"):
            leftover.unlink(missing_ok=True)


def clear_killed(out_dir: Path) -> None:
    """Remove what runs that were killed left in this folder: of finished slides too, which nobody opens again."""
    clear_dead(out_dir / "logs")
    files = [file for folder, ending in _WRITTEN for file in (out_dir / folder).glob(f".*.{ending}.*.tmp")]
    names = {file.name[1:].rsplit(".", 3)[0] for file in files}
    locked = {file.name[1:].removesuffix(".lock") for file in out_dir.glob(".*.lock")}
    for name in names | {name for name in locked if (out_dir / f"{name}.h5").exists()}:
        with slide_lock(out_dir, name) as state:  # removes the lock's own file, too
            if state == "held":
                remove_leftovers(out_dir, name)


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)

"""torchmil's processed sets: ``features/{bag}.npy`` with ``coords/``, ``labels/`` and ``patch_labels/`` beside it.

A set of one encoder among several lies in ``features/features_NAME/``.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dasmil.data.formats.contents import FeatureFile, Probe, pixel_scale
from dasmil.data.given_splits import read_folds
from dasmil.data.memory import need_memory
from dasmil.data.scale import Scale
from dasmil.errors import DataError, InputError
from dasmil.files import replacing

FORMAT = "torchmil"


def find_torchmil(path: Path) -> Path | None:
    """The folder of the set that a ``.npy`` file of features belongs to; None where it is no such file."""
    if path.suffix.lower() != ".npy":
        return None
    parents = [path.parent, path.parent.parent]
    root = next((folder.parent for folder in parents if folder.name == "features"), None)
    return root if root is not None and (root / "coords" / path.name).is_file() else None


def probe_torchmil(path: Path, root: Path) -> Probe:
    """The size of a bag by the headers of its files, and its label."""
    features, coords = _matrix(path), _matrix(root / "coords" / path.name)
    encoder = path.parent.name.removeprefix("features_") if path.parent.name != "features" else None
    return Probe(
        path, FORMAT, n=len(features), n_coords=len(coords), in_features=features.shape[1], encoder=encoder,
        label=_label(root / "labels" / path.name),
    )  # fmt: skip


def read_torchmil(path: Path, root: Path, scale: Scale, *, features: bool = True) -> FeatureFile:
    """Read a bag; coords are pixels whose length is given, or follows from the size of tiles that lie side by side.

    Labels of patches become key instances where they are 0 and 1.
    """
    stored, places = _matrix(path), _matrix(root / "coords" / path.name)
    if len(places) != len(stored) or places.shape[1] != 2:
        raise DataError(f"{root / 'coords' / path.name} holds {places.shape}, expected [{len(stored)}, 2]")
    coords = np.asarray(places, dtype=np.float64)
    mpp, source = pixel_scale(path, FORMAT, coords, scale, tile_px=None)
    if features:
        need_memory(path, "features", 4 * stored.size)
    return FeatureFile(
        probe=probe_torchmil(path, root),
        features=np.array(stored, dtype=np.float32) if features else np.empty((len(stored), 0), np.float32),
        coords=(coords * mpp).astype(np.float32),
        tile_um=scale.tile_um,
        mpp=mpp,
        placed=f"torchmil: px as stored x mpp ({source})",
        optional=_keys(root / "patch_labels" / path.name, len(stored)),
    )


def write_torchmil_labels(root: str | Path, out: str | Path) -> Path:
    """Write a label table (slide, label, split) for ``dasmil train --labels`` from ``labels/`` and ``splits.csv``.

    Example: ``write_torchmil_labels("CAMELYON16/patches_512", "labels.csv")``

    root: the folder with ``features`` and ``labels``; ``splits.csv`` lies in it or above it, and may be missing.
    """
    root, out = Path(root), Path(out)
    files = sorted((root / "labels").glob("*.npy"))
    if not files:
        raise InputError(f"{root} holds no labels/*.npy: expected the folder of a processed set of torchmil")
    table = next((f for folder in (root, root.parent) if (f := folder / "splits.csv").is_file()), None)
    split = {} if table is None else _sets(table)
    with replacing(out) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["slide", "label", *(["split"] if split else [])])
        for one in files:
            writer.writerow([one.stem, _label(one), *([split.get(one.stem, "")] if split else [])])
    return out


def _sets(table: Path) -> Mapping[str, str]:
    (fold,) = read_folds(table)
    return {name: part for part, names in fold.sets.items() for name in names}


def _load(path: Path) -> np.ndarray:
    """An array of numbers, mapped and not read."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise DataError(f"{path} cannot be read as an array ({reason}); write it again") from None
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiub":
        raise DataError(f"{path} holds no array of numbers; write it again")
    return found


def _matrix(path: Path) -> np.ndarray:
    found = _load(path)
    if found.ndim != 2 or 0 in found.shape:
        raise DataError(f"{path} holds an array of shape {found.shape}, expected two dimensions")
    return found


def _label(path: Path) -> int | None:
    """The class of a bag; None without a file."""
    if not path.is_file():
        return None
    value = _load(path).ravel()
    if len(value) != 1 or not 0 <= value[0] < 2**31 or value[0] != int(value[0]):
        raise DataError(f"{path} holds {value[:3]}, expected one class number")
    return int(value[0])


def _keys(path: Path, n: int) -> dict[str, np.ndarray]:
    """Key instances from the labels of patches, where there are any."""
    if not path.is_file():
        return {}
    values = np.array(_load(path)).ravel()
    if len(values) != n:
        raise DataError(f"{path} holds {len(values)} labels of patches, expected {n}")
    return {"key_instances": values == 1} if np.isin(values, (0, 1)).all() else {}

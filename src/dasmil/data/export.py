"""Bags in the layouts of other tools (docs/bag-format.md): STAMP 2.1 and later, TRIDENT, CLAM."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np

from dasmil.data.layouts import Format
from dasmil.data.store import replacing_h5, write_bag
from dasmil.errors import DataError, unknown_name
from dasmil.types import Bag

# TRIDENT names an objective by the resolution it sees: below this many um/px it is that magnification.
_MAGNIFICATIONS = ((0.16, 80), (0.2, 60), (0.3, 40), (0.6, 20), (1.2, 10), (2.4, 5))


def export_bag(bag: Bag, path: str | Path, format: Format) -> None:
    """Write a bag with tile positions in the layout of another tool ("dasmil" is the product's own).

    Needs metadata tile_um; mpp too where micrometres and level-0 pixels are converted; tile_px for STAMP and TRIDENT.
    """
    path = Path(path)
    if format not in get_args(Format):
        raise unknown_name("format", format, get_args(Format))
    if format == "dasmil":
        write_bag(path, bag)
    elif format == "stamp":
        _stamp(path, bag)
    elif format == "trident":
        _trident(path, bag)
    else:
        _clam(path, bag)


def _stamp(path: Path, bag: Bag) -> None:
    tile_um, tile_px = _number(bag, "stamp", "tile_um"), _number(bag, "stamp", "tile_px")
    centres_um = _coords(bag) * (1.0 if bag.unit == "um" else _number(bag, "stamp", "mpp"))
    features = _features(bag, "stamp", np.float16)
    with replacing_h5(path) as file:
        file["coords"] = (centres_um - tile_um / 2).astype(np.float32)
        file["feats"] = features
        file.attrs["unit"] = "um"
        file.attrs["tile_size_um"] = tile_um
        file.attrs["tile_size_px"] = int(tile_px)
        file.attrs["extractor"] = str(_need(bag, "stamp", "encoder"))
        file.attrs["feat_type"] = "tile"


def _trident(path: Path, bag: Bag) -> None:
    mpp, tile_px = _number(bag, "trident", "mpp"), int(_number(bag, "trident", "tile_px"))
    corners, tile_level0 = _level0_corners(bag, "trident")
    magnification = next((m for limit, m in _MAGNIFICATIONS if mpp < limit), None)
    if magnification is None:
        raise DataError(f"bag {bag.bag_id!r}: mpp is {mpp:g}, too coarse for TRIDENT, which needs below 2.4 um/px")
    target = magnification * tile_px / tile_level0
    attributes = {
        "patch_size": tile_px,
        "patch_size_level0": tile_level0,
        "level0_magnification": magnification,
        "target_magnification": int(target) if target == int(target) else target,
        "overlap": 0,
        "name": bag.bag_id,
    }
    for ours, theirs in (("slide_width_px", "level0_width"), ("slide_height_px", "level0_height")):
        if ours in bag.metadata:
            attributes[theirs] = int(_number(bag, "trident", ours))
    features = _features(bag, "trident", np.float32)
    with replacing_h5(path) as file:
        file["features"] = features
        file["features"].attrs["name"] = bag.bag_id
        if "encoder" in bag.metadata:
            file["features"].attrs["encoder"] = str(bag.metadata["encoder"])
        file["coords"] = corners
        file["coords"].attrs.update(attributes)


def _clam(path: Path, bag: Bag) -> None:
    corners, _ = _level0_corners(bag, "clam")
    features = _features(bag, "clam", np.float32)
    with replacing_h5(path) as file:
        file["features"] = features
        file["coords"] = corners.astype(np.int32)


def _level0_corners(bag: Bag, format: str) -> tuple[np.ndarray, int]:
    """Top left corners in whole level-0 pixels, and the tile's side in level-0 pixels."""
    mpp, tile_um = _number(bag, format, "mpp"), _number(bag, format, "tile_um")
    tile = tile_um / mpp
    centres = _coords(bag) / (mpp if bag.unit == "um" else 1.0)
    return np.rint(centres - tile / 2).astype(np.int64), max(1, round(tile))


def _coords(bag: Bag) -> np.ndarray:
    coords = bag.coords.double().cpu().numpy()
    if coords.shape[1] != 2:
        raise DataError(
            f"bag {bag.bag_id!r}: coords have {coords.shape[1]} dimensions; other tools' files hold x and y"
        )
    if bag.section is not None and len(bag.section.unique()) > 1:
        raise DataError(
            f"bag {bag.bag_id!r}: holds several sections, which other tools' files cannot tell apart; export each alone"
        )
    return coords


def _features(bag: Bag, format: str, dtype: type[np.floating]) -> np.ndarray:
    features = bag.features.detach().float().cpu().numpy()
    if features.ndim != 2:
        raise DataError(f"bag {bag.bag_id!r}: features have shape {features.shape}; {format} files hold [n, d]")
    with np.errstate(over="ignore"):
        converted = features.astype(dtype)
    if not np.isfinite(converted[np.isfinite(features)]).all():
        raise DataError(f"bag {bag.bag_id!r}: features are too large for the {np.dtype(dtype)} of {format} files")
    return converted


def _need(bag: Bag, format: str, name: str) -> Any:
    value = bag.metadata.get(name)
    if value is None:
        raise DataError(f"bag {bag.bag_id!r}: metadata has no {name!r}, which a {format} file needs; add it to the bag")
    return value


def _number(bag: Bag, format: str, name: str) -> float:
    value = _need(bag, format, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < float("inf")):
        raise DataError(f"bag {bag.bag_id!r}: metadata {name!r} is {value!r}, expected a positive number")
    return float(value)

"""Tissue as another program found it: outlines (TRIDENT's GeoJSON), a picture of the mask, or the patches it cut."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from dasmil.data.annotations import read_annotations
from dasmil.data.labels import plain_slide
from dasmil.data.store import plain
from dasmil.errors import DataError, InputError, named, shown
from dasmil.wsi.tissue import TissueMask

OUTLINES, PICTURES, PATCHES = (".geojson", ".geojson.gz", ".json"), (".png", ".tif", ".tiff"), (".h5",)
ENDINGS = ("", "_mask", "-mask", "_tissue", "_patches")
"""What programs add to the slide's name."""
REFUSED = (".pkl", ".pickle", ".jpg", ".jpeg")
MOST_PIXELS = 200_000_000
TOLERANCE = 0.02
"""By how much the shape of a mask may differ from that of its slide."""


def find_mask(folder: str | Path, slide: str) -> Path:
    """The mask of a slide in a folder: SLIDE.geojson, SLIDE.png, SLIDE_mask.png, SLIDE_patches.h5, ..."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"--masks is {folder}, expected a folder with a mask for each slide")
    wanted = {plain_slide(slide) + ending for ending in ENDINGS}
    here = sorted(path for path in folder.iterdir() if _stem(path) in wanted)
    found = [path for path in here if path.name.lower().endswith((*OUTLINES, *PICTURES, *PATCHES))]
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(f"{folder} has several masks of {slide!r} ({named(path.name for path in found)}): keep one")
    if (other := [path.name for path in here if path.suffix.lower() in REFUSED]) != []:
        raise DataError(
            f"{folder / other[0]} is no mask that can be read: a pickle may run code, and a JPEG is a picture of the "
            "outlines. Give the patches of the same program (SLIDE.h5 with coords), GeoJSON, or a PNG mask"
        )
    raise DataError(
        f"{folder} has no mask of {slide!r}: expected {slide} (or {slide}_mask, {slide}_patches) ending in "
        f"{', '.join((*OUTLINES, *PICTURES, *PATCHES))}"
    )


def _stem(path: Path) -> str:
    name = path.name
    for suffix in sorted((*OUTLINES, *PICTURES, *PATCHES, *REFUSED), key=len, reverse=True):
        if name.lower().endswith(suffix):
            return plain_slide(name[: -len(suffix)])
    return ""


def read_mask(path: str | Path, width_px: int, height_px: int, mpp: float, um_per_px: float) -> TissueMask:
    """The mask of a slide of so many level-0 pixels, on a raster of um_per_px."""
    path = Path(path)
    step = um_per_px / mpp  # level-0 pixels in one pixel of the mask
    shape = math.ceil(height_px / step), math.ceil(width_px / step)
    name = path.name.lower()
    if name.endswith(PICTURES):
        mask = _of_picture(path, shape, width_px / height_px)
    elif name.endswith(PATCHES):
        mask = _of_patches(path, shape, step)
    else:
        mask = read_annotations(path).raster(np.zeros(2), step, shape)
    if not mask.any():
        raise DataError(f"{path} marks nothing on the slide of {width_px} x {height_px} px: is it the mask of another?")
    return TissueMask(mask, um_per_px, math.nan)


def _of_picture(path: Path, shape: tuple[int, int], ratio: float) -> np.ndarray:
    """Every pixel that is not black is tissue."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            width, height = picture.size
            if width * height > MOST_PIXELS:
                raise DataError(f"{path} has {width} x {height} pixels, expected at most {MOST_PIXELS:,}: shrink it")
            values = np.asarray(picture.convert("RGB") if picture.mode in ("P", "RGBA", "CMYK") else picture)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as a picture of a mask ({error})") from None
    if abs(width / height / ratio - 1) > TOLERANCE:
        raise DataError(
            f"{path} has {width} x {height} pixels, whose shape is not that of the slide (width / height "
            f"{ratio:.3f}): it is the mask of another slide, or of a part of it"
        )
    if values.ndim == 3:
        if (np.ptp(values[..., :3], axis=2) > 0).any():
            raise DataError(f"{path} has colours, expected a mask: black where there is no tissue, white or grey else")
        values = values[..., 0]
    rows, columns = ((np.arange(n) + 0.5) * size / n for n, size in zip(shape, (height, width), strict=True))
    return values[rows.astype(int)][:, columns.astype(int)] > 0


def _of_patches(path: Path, shape: tuple[int, int], step: float) -> np.ndarray:
    """All that lies in a patch: of coordinates as CLAM and TRIDENT write them, top left corners in level-0 pixels."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            found = file["coords"]
            if not isinstance(found, h5py.Dataset):
                raise ValueError("its coords are no table")
            corners = np.asarray(found[:], dtype=np.float64)
            known = {name: plain(found.attrs[name]) for name in found.attrs}
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{path} cannot be read as patches: expected HDF5 with coords ({error})") from None
    side = known.get("patch_size_level0")
    if side is None:
        downsample = np.ravel(known.get("downsample", ()))
        side = known.get("patch_size", math.nan) * float(downsample[0]) if len(downsample) else None
    if not isinstance(side, int | float) or not side > 0 or corners.ndim != 2 or corners.shape[1] != 2:
        raise DataError(
            f"{path}: coords are {corners.shape} with {shown(known, 80)}, expected [n, 2] and patch_size_level0, or "
            "patch_size and downsample"
        )
    starts = np.clip(np.round(corners / step), 0, None).astype(int)
    ends = np.round((corners + side) / step).astype(int)
    mask = np.zeros(shape, dtype=bool)
    for (left, top), (right, bottom) in zip(starts, ends, strict=True):
        mask[top:bottom, left:right] = True
    return mask

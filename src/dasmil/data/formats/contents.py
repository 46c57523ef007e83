"""What every reader hands back, and the few questions about coordinates that all formats share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial import KDTree

from dasmil.data.scale import Scale
from dasmil.errors import InputError, ScaleError

SLIDE_VECTOR = "slide vector"
"""The format of files with one row of features for a whole slide, as slide encoders write them: no positions."""


@dataclass(frozen=True)
class Probe:
    """What a file says about itself before its features are read.

    in_features: numbers of one instance; picture_shape: of pixels (channels, height, width), None for features;
    tile_um, mpp, size_px: as declared by the file, None where it is silent; n_coords: None if there are none.
    label, patient_id: only dasmil's own files carry a class number and a patient.
    """

    path: Path
    format: str
    n: int
    n_coords: int | None
    in_features: int
    encoder: str | None = None
    tile_um: float | None = None
    mpp: float | None = None
    size_px: tuple[float, float] | None = None
    picture_shape: tuple[int, ...] | None = None
    label: int | None = None
    patient_id: str | None = None


@dataclass(frozen=True)
class FeatureFile:
    """The instances of one slide: features [n, f], centres [n, 2] in micrometres, and how they were found.

    features may be pixels, uint8 [n, 3, h, w]; left_out: rows that were copies of tiles (augmented).
    """

    probe: Probe
    features: np.ndarray
    coords: np.ndarray
    tile_um: float | None
    mpp: float | None
    placed: str
    left_out: int = 0
    optional: dict[str, np.ndarray] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    instance_ids: tuple[str, ...] | None = None

    @property
    def rule(self) -> str:
        """How positions were found, and what was left out."""
        return self.placed + left_out_text(self.left_out)


def slide_vector(probe: Probe, features: np.ndarray) -> FeatureFile:
    """A slide as one instance at the origin."""
    placed = "one row for the whole slide, which has no position"
    return FeatureFile(probe, features, np.zeros((1, 2), np.float32), tile_um=None, mpp=None, placed=placed)


def left_out_text(n: int) -> str:
    """The end of a rule for files with augmented rows."""
    return f"; {n} augmented copies of tiles left out" if n else ""


def measured_stride(coords: np.ndarray) -> float:
    """The usual distance between a tile and its nearest neighbour, in the unit of the coordinates; nan for one tile.

    The nearest neighbour, and not the steps along an axis, because tools start a new grid for every piece of tissue.
    """
    steps = _to_nearest(coords)
    return float(np.median(np.hypot(*steps.T))) if len(steps) else float("nan")


def shows_stride(coords: np.ndarray) -> bool:
    """Whether the measured stride is a step of the grid: so it is if most tiles lie side by side, at least three.

    Of tiles that are scattered over a grid the nearest is not the next one, and their distances differ.
    """
    steps = _to_nearest(coords)
    stride = np.median(np.hypot(*steps.T)) if len(steps) else 1.0
    beside = (np.abs(steps.max(1) - stride) <= 0.01 * stride) & (steps.min(1) <= 0.01 * stride)
    return bool(beside.sum() >= 3 and 2 * beside.sum() > len(steps))


def off_grid(coords: np.ndarray) -> bool:
    """Whether instances lie where things are (cells) and not on a grid: hardly two of them share an x or a y."""
    places = np.round(coords[np.isfinite(coords).all(axis=1)], 2)
    return len(places) >= 20 and all(len(np.unique(axis)) > 0.8 * len(places) for axis in places[:, :2].T)


def _to_nearest(coords: np.ndarray) -> np.ndarray:
    """How far each place is from the nearest other one along x and y [n, 2]; empty for one place; NaN is no place."""
    unique = np.unique(np.asarray(coords, dtype=np.float64), axis=0)
    unique = unique[np.isfinite(unique).all(axis=1)]
    if len(unique) < 2:
        return np.empty((0, 2))
    _, found = KDTree(unique).query(unique, k=2)
    nearest = np.asarray(found)[:, 1]
    near = nearest < len(unique)  # places so far apart that their distance overflows have no neighbour
    return np.abs(unique[nearest[near]] - unique[near])


def need_scale(path: Path, format: str, what: str) -> InputError:
    """The error for a format that does not say how long a pixel is."""
    return InputError(
        f"{path}: {format} files give positions in {what} without saying how many micrometres one is; "
        "give it with --mpp (um per pixel, one number for all slides), with --tile-um (edge of a tile in um), "
        "or slide by slide with --scale-table (CSV: slide, mpp)"
    )


def agreed(path: Path, what: str, declared: float | None, given: float | None) -> float | None:
    """The declared value if there is one, else the given one; both but different is an error."""
    if declared is not None and given is not None and abs(declared - given) > 0.01 * declared:
        raise ScaleError(f"{path}: the file declares {what} {declared:g}, but {given:g} was given; remove one of them")
    return declared if declared is not None else given


def pixel_scale(
    path: Path,
    format: str,
    coords: np.ndarray,
    scale: Scale,
    tile_px: float | None,
    declared_mpp: float | None = None,
    declared_um: float | None = None,
) -> tuple[float, str]:
    """Micrometres per pixel of the coordinates and where the number comes from; declared_um: the edge of a tile."""
    mpp = agreed(path, "mpp", declared_mpp, scale.mpp)
    if mpp is not None:
        return mpp, f"{mpp:g} um/px {'as the file declares' if declared_mpp is not None else 'as given'}"
    tile_um = scale.tile_um if scale.tile_um is not None else declared_um
    if tile_um is None:
        raise need_scale(path, format, "level-0 pixels")
    own = bool(tile_px) or shows_stride(coords)
    edge, source = (tile_px, "declared tile") if tile_px else (measured_stride(coords), "measured stride")
    if not own and scale.stride_px is not None:
        edge, source = scale.stride_px, "stride of the cohort"
    elif not own:
        tiles = "its one tile shows" if len(coords) == 1 else f"the {len(coords)} tiles show"
        raise ScaleError(
            f"{path}: the scale would be --tile-um / stride, but {tiles} no stride, which takes three or more side by "
            "side and not scattered ones: give the um per pixel of this slide with --scale-table (CSV: slide, mpp), "
            "or of all with --mpp"
        )
    whence = "as given" if scale.tile_um is not None else "as its settings declare"
    return tile_um / edge, f"{tile_um:g} um {whence} / {source} {edge:g} px"

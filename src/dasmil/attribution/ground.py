"""Where the instances of a bag lie, and the picture that they were cut from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dasmil.data.mnist.picture import collage_image, digit_images
from dasmil.errors import DataError
from dasmil.types import Bag, Unit
from dasmil.vocabulary import UNIT_SYMBOL

FARTHEST = 1e12
"""A position beyond it is no place on a slide, in any unit."""


class Ground(Protocol):
    """The picture under a map; all lengths in the unit of the bag's coordinates, from the top left corner."""

    @property
    def width(self) -> float: ...

    @property
    def height(self) -> float: ...

    def thumbnail(self, per_px: float) -> np.ndarray:
        """The whole picture, uint8 [h, w, 3], where one pixel stands for the length `per_px`."""
        ...

    def tile(self, x: float, y: float, side: float, side_px: int) -> np.ndarray:
        """The square with its top left corner at (x, y), uint8 [side_px, side_px, 3]."""
        ...


class CollageGround:
    """A collage of MNIST digits, dark on white."""

    def __init__(self, bag: Bag) -> None:
        self._picture = np.repeat(255 - collage_image(bag)[..., None], 3, axis=2)
        self._digits = 255 - digit_images(bag)
        self._centres = bag.coords.numpy()
        self.height, self.width = (float(size) for size in self._picture.shape[:2])

    def thumbnail(self, per_px: float) -> np.ndarray:
        y, x = (
            np.minimum((np.arange(round(s / per_px)) + 0.5) * per_px, s - 1).astype(int)
            for s in (self.height, self.width)
        )
        return self._picture[y][:, x]

    def tile(self, x: float, y: float, side: float, side_px: int) -> np.ndarray:
        """The digit whose centre is that of the square, without its neighbours."""
        nearest = int(np.square(self._centres - (x + side / 2, y + side / 2)).sum(1).argmin())
        pick = (np.arange(side_px) * 28 // side_px).clip(0, 27)
        return np.repeat(self._digits[nearest][pick][:, pick, None], 3, axis=2)


ASKED = 20_000
"""About so many instances, spread over the bag, are asked for their nearest neighbour."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Centres [n, 2] and side of the instances, and the field of a map (left, top, width, height), in `unit`."""

    centres: np.ndarray
    side: float
    field: tuple[float, float, float, float]
    unit: Unit
    mpp: float | None

    @property
    def n(self) -> int:
        return len(self.centres)


def layout_of(bag: Bag, ground: Ground | None = None) -> Layout:
    """The layout of a bag: tile side and slide size from its metadata, otherwise from the positions themselves.

    Several sections without a picture are set side by side: each has positions of its own.
    """
    centres = bag.coords[:, :2].double().numpy()
    if np.abs(centres).max() > FARTHEST:
        raise DataError(
            f"bag {bag.bag_id!r} has positions of {np.abs(centres).max():.3g} {bag.unit}, which no slide has and no "
            "map can show: correct the scale, or extract the slide again"
        )
    mpp = _number(bag, "mpp")
    side = _side(bag, centres, mpp)
    sections = [] if bag.section is None or ground is not None else bag.section.unique().tolist()
    if len(sections) > 1:
        centres = _side_by_side(centres, [(bag.section == s).numpy() for s in sections], side)
    if ground is not None:
        field = (0.0, 0.0, ground.width, ground.height)
    elif len(sections) < 2 and (size := _slide_size(bag, mpp)) is not None:
        field = (0.0, 0.0, *size)
    else:
        low, high = centres.min(0) - side, centres.max(0) + side
        field = (float(low[0]), float(low[1]), float(high[0] - low[0]), float(high[1] - low[1]))
    return Layout(centres, side, field, bag.unit, mpp)


def _side_by_side(centres: np.ndarray, sections: Sequence[np.ndarray], side: float) -> np.ndarray:
    """The same positions within each section, the sections in a row with a gap between them."""
    centres = centres.copy()
    gap = max(4 * side, 0.05 * max(float(np.ptp(centres[members, 0])) for members in sections))
    left = 0.0
    for members in sections:
        centres[members] += (left, 0.0) - centres[members].min(0)
        left = float(centres[members, 0].max()) + gap
    return centres


def _number(bag: Bag, name: str) -> float | None:
    value = bag.metadata.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    return float(value)


def _side(bag: Bag, centres: np.ndarray, mpp: float | None) -> float:
    tile_um = _number(bag, "tile_um")
    if bag.unit == "um" and tile_um:
        return tile_um
    if bag.unit == "px" and tile_um and mpp:
        return tile_um / mpp
    if bag.features.ndim == 4 and bag.unit == "px":  # pictures, one pixel to one pixel
        return float(bag.features.shape[-1])
    if len(centres) < 2:
        return 1.0
    from scipy.spatial import KDTree

    some = centres[:: max(1, len(centres) // ASKED)]  # of half a million cells these know the spacing as well as all
    distance = KDTree(centres).query(some, k=2)[0][:, 1]
    return float(np.median(distance[distance > 0])) if (distance > 0).any() else 1.0


def _slide_size(bag: Bag, mpp: float | None) -> tuple[float, float] | None:
    if (collage := _number(bag, "collage_px")) is not None and bag.unit == "px":
        return collage, collage
    width, height = _number(bag, "slide_width_px"), _number(bag, "slide_height_px")
    if width is None or height is None:
        return None
    if bag.unit == "px":
        return width, height
    return (width * mpp, height * mpp) if mpp else None


def level0_boxes(bag: Bag) -> np.ndarray:
    """Corners of the tiles [n, 4] (left, top, right, bottom) in level-0 pixels."""
    layout = layout_of(bag)
    factor = 1.0
    if bag.unit == "um":
        if layout.mpp is None:
            raise DataError(
                f"bag {bag.bag_id!r} has coordinates in micrometres and no 'mpp' (micrometres per pixel) in its "
                "metadata, which level-0 pixels need: extract the features again, or add the attribute to the file"
            )
        factor = 1 / layout.mpp
    centres, half = bag.coords[:, :2].double().numpy(), layout.side / 2
    return np.concatenate([centres - half, centres + half], axis=1) * factor


def check_ground(bag: Bag, ground: Ground, name: str, tolerance: float = 0.02) -> None:
    """A slide that the tiles do not lie on is not the bag's slide."""
    centres = bag.coords[:, :2].double().numpy()
    low, high = centres.min(0), centres.max(0)
    if (low < 0).any() or high[0] > ground.width * (1 + tolerance) or high[1] > ground.height * (1 + tolerance):
        unit = UNIT_SYMBOL[bag.unit]
        raise DataError(
            f"{name} is {ground.width:.0f} x {ground.height:.0f} {unit}, but bag {bag.bag_id!r} has instances up to "
            f"({high[0]:.0f}, {high[1]:.0f}) {unit}: this is not the slide that the bag was made from"
        )

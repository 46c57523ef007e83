"""Where the tissue is: a mask on a thumbnail, and whether a tile shows something sharp."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from dasmil.wsi.config import TissueConfig

MAX_MASK_PIXELS = 6_000_000


@dataclass(frozen=True)
class TissueMask:
    """True where there is tissue; pixel [i, j] covers um_per_px micrometres from (j, i) * um_per_px."""

    mask: np.ndarray
    um_per_px: float
    threshold: float
    """The saturation above which a pixel counted as tissue."""

    def fractions(self, x_um: np.ndarray, y_um: np.ndarray, size_um: float) -> np.ndarray:
        """The share of tissue in squares with these top left corners, mask pixels weighed by their overlap."""
        total = np.zeros((self.mask.shape[0] + 1, self.mask.shape[1] + 1))
        np.cumsum(np.cumsum(self.mask, axis=0, dtype=np.float64), axis=1, out=total[1:, 1:])

        def below(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            points = np.stack([y / self.um_per_px, x / self.um_per_px])
            points = np.clip(points, 0, np.array(self.mask.shape)[:, None])
            return ndimage.map_coordinates(total, points, order=1, mode="nearest")

        x1, y1 = x_um + size_um, y_um + size_um
        inside = below(x1, y1) - below(x_um, y1) - below(x1, y_um) + below(x_um, y_um)
        return np.clip(inside * (self.um_per_px / size_um) ** 2, 0.0, 1.0)


def find_tissue(thumbnail: np.ndarray, um_per_px: float, config: TissueConfig) -> TissueMask:
    """Mask the tissue on a thumbnail: coloured, neither black nor pen, pieces and holes of a sensible size."""
    rgb = np.ascontiguousarray(np.moveaxis(thumbnail, -1, 0))
    # A median over 3 x 3 takes out single specks and the colour noise of JPEG, and keeps edges where they are.
    rgb = np.stack([ndimage.median_filter(channel, size=3) for channel in rgb])
    brightest, saturation = rgb.max(axis=0), _saturation(rgb)
    usable = brightest >= round(config.dark * 255)
    if config.pen:
        usable &= ~_pen(rgb, saturation, um_per_px)
    values = saturation[usable]
    threshold = float(np.clip(_otsu(values) / 255, config.saturation_low, config.saturation_high))
    mask = usable & (saturation > threshold * 255)
    mask = _close(mask, config.close_um / um_per_px) & usable
    area_um2 = um_per_px**2
    mask = _fill_holes(mask, config.max_hole_mm2 * 1e6 / area_um2) & usable
    mask = _remove_small(mask, config.min_area_mm2 * 1e6 / area_um2)
    if config.fold:
        mask &= ~_folds(rgb, mask, um_per_px, config.fold)
    return TissueMask(mask, um_per_px, threshold)


def is_blank(tile: np.ndarray, config: TissueConfig) -> bool:
    """Whether hardly a pixel of the tile is stained; green light is absorbed by haematoxylin, eosin and DAB alike."""
    stained = np.count_nonzero(tile[..., 1] < config.blank_level)
    return stained < config.blank_share * tile.shape[0] * tile.shape[1]


def sharpness(tile: np.ndarray, um_per_px: float) -> float:
    """The variance of the Laplacian of the grey tile at about 1 um/px: low where nothing has an edge, as out of focus.

    Finer tiles are brought to about 1 um/px first, so that one threshold serves all magnifications.
    """
    wide = tile.astype(np.int16)
    grey = (wide[..., 0] + 2 * wide[..., 1] + wide[..., 2]) >> 2
    step = round(1 / um_per_px)
    if step > 1 and min(grey.shape) >= 8 * step:
        rows, columns = grey.shape[0] // step, grey.shape[1] // step
        blocks = grey[: rows * step, : columns * step].reshape(rows, step, columns, step)
        grey = blocks.mean(axis=(1, 3)).astype(np.int16)
    centre = grey[1:-1, 1:-1]
    laplacian = 4 * centre - grey[:-2, 1:-1] - grey[2:, 1:-1] - grey[1:-1, :-2] - grey[1:-1, 2:]
    return float(laplacian.astype(np.float32).var())


def _saturation(rgb: np.ndarray) -> np.ndarray:
    """Saturation 0..255 of planar RGB; in the dark it is damped, because there it is noise."""
    brightest = rgb.max(axis=0)
    spread = (brightest - rgb.min(axis=0)).astype(np.float32)
    return (spread * (255 / np.maximum(brightest, 102).astype(np.float32))).astype(np.uint8)


def _pen(rgb: np.ndarray, saturation: np.ndarray, um_per_px: float) -> np.ndarray:
    """Pen marks: hues that no stain of tissue has, or hues of stains far purer than tissue ever is; with their rim."""
    red, green, blue = (channel.astype(np.int16) for channel in rgb)
    coloured = saturation > 50
    greenish = coloured & (green > red + 12) & (green >= blue - 12)
    cyan = coloured & (green > red + 40) & (blue > red + 40)
    pure_blue = (saturation > 125) & (blue > red + 70) & (green > red - 25) & (blue > green + 20)
    pure_red = (saturation > 175) & (red > 140) & (green < 80) & (blue < 90)
    marks = _remove_small(greenish | cyan | pure_blue | pure_red, 5000 / um_per_px**2)
    return _grow(marks, 32 / um_per_px)


def _folds(rgb: np.ndarray, mask: np.ndarray, um_per_px: float, times: float) -> np.ndarray:
    """Tissue in two layers or more: its optical density, over 48 um, is so many times the median of the tissue."""
    if not mask.any():
        return mask
    density = -np.log(np.maximum(rgb, 1).astype(np.float32) / 255).mean(axis=0)
    size = 2 * round(24 / um_per_px) + 1
    inside = ndimage.uniform_filter(mask.astype(np.float32), size)
    mean = ndimage.uniform_filter(density * mask, size) / np.maximum(inside, 1e-6)
    folds = mask & (mean >= times * np.median(density[mask]))
    return _grow(_remove_small(folds, 10_000 / um_per_px**2), 16 / um_per_px)


def _otsu(values: np.ndarray) -> float:
    """The threshold that splits a histogram of bytes into two classes with the least variance within them."""
    counts = np.bincount(values.ravel(), minlength=256).astype(np.float64)
    if counts.sum() == 0:
        return 255.0
    below = np.cumsum(counts)
    above = below[-1] - below
    moment = np.cumsum(counts * np.arange(256))
    with np.errstate(divide="ignore", invalid="ignore"):
        between = below * above * (moment / below - (moment[-1] - moment) / above) ** 2
    between[~np.isfinite(between)] = 0
    return float(np.argmax(between))


def _grow(mask: np.ndarray, radius_px: float) -> np.ndarray:
    size = 2 * round(radius_px) + 1
    return ndimage.maximum_filter(mask, size=size, mode="constant") if size > 1 else mask


def _close(mask: np.ndarray, width_px: float) -> np.ndarray:
    radius = round(width_px / 2)
    if radius < 1:
        return mask
    # Padded, so that the border of the picture is not eaten away.
    grown = _grow(np.pad(mask, radius), radius)
    shrunk = ndimage.minimum_filter(grown, size=2 * radius + 1, mode="constant", cval=True)
    return shrunk[radius:-radius, radius:-radius]


def _remove_small(mask: np.ndarray, min_px: float) -> np.ndarray:
    pieces, _ = _label(mask, np.ones((3, 3), bool))
    large = np.bincount(pieces.ravel()) >= max(min_px, 1)
    large[0] = False
    return large[pieces]


def _label(mask: np.ndarray, structure: np.ndarray) -> tuple[np.ndarray, int]:
    """Number the connected pieces of a mask from 1."""
    pieces = np.zeros(mask.shape, np.int32)
    count = ndimage.label(mask, structure, output=pieces)
    return pieces, int(np.asarray(count))


def _fill_holes(mask: np.ndarray, max_px: float) -> np.ndarray:
    holes, count = _label(~mask, np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]], bool))
    small = np.bincount(holes.ravel(), minlength=count + 1) < max_px
    small[0] = False
    edge = np.unique(np.concatenate([holes[0], holes[-1], holes[:, 0], holes[:, -1]]))
    small[edge] = False  # open to the border: not a hole
    return mask | small[holes]

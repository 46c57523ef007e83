"""The picture that shows what was taken from a slide and what was not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dasmil.files import replacing
from dasmil.wsi.tiling import Grid
from dasmil.wsi.tissue import TissueMask

if TYPE_CHECKING:
    from PIL.Image import Image

EMPTY, KEPT, BLANK, BLURRED = 0, 1, 2, 3
"""What became of a tile of the grid."""

LONG_SIDE = 1000
HEADER, FOOTER, MARGIN = 52, 34, 12
BLUE, ORANGE, INK, GREY = (31, 78, 121), (214, 112, 16), (20, 20, 20), (110, 110, 110)

_COVER = np.array([0, 40, 52, 52], np.uint16)
_COLOURS = np.array([INK, BLUE, ORANGE, ORANGE], np.uint16)


@dataclass(frozen=True)
class SlideCheck:
    """All that the picture shows."""

    name: str
    thumbnail: np.ndarray
    um_per_px: float
    tissue: TissueMask
    grid: Grid
    state: np.ndarray
    mpp: float
    mpp_origin: str


def draw(checked: SlideCheck) -> Image:
    """The thumbnail with the outline of the mask, kept tiles in blue, dropped ones in orange, and a scale bar."""
    from PIL import Image, ImageDraw, ImageFont

    picture = _overlay(checked)
    height, width = picture.shape[:2]
    canvas = Image.new("RGB", (max(width, 420) + 2 * MARGIN, height + HEADER + FOOTER), (255, 255, 255))
    canvas.paste(Image.fromarray(picture), (MARGIN, HEADER))
    pen = ImageDraw.Draw(canvas)
    bold, plain = ImageFont.load_default(16), ImageFont.load_default(13)
    room = canvas.width - 2 * MARGIN
    pen.text((MARGIN, 8), _shortened(checked.name, bold, room), fill=INK, font=bold)
    size = f"{checked.grid.tile_um:g} um tiles, {checked.mpp:.4g} um/px from {checked.mpp_origin}"
    pen.text((MARGIN, 30), _shortened(size, plain, room), fill=GREY, font=plain)
    counts = np.bincount(checked.state, minlength=4)
    x, baseline = MARGIN, HEADER + height + 9
    for label, colour in (
        (f"{counts[KEPT]:,} kept", BLUE),
        (f"{counts[BLANK]:,} blank", ORANGE),
        (f"{counts[BLURRED]:,} out of focus", ORANGE),
        ("tissue outline", INK),
    ):
        pen.text((x, baseline), label, fill=colour, font=plain)
        x += round(pen.textlength(label, font=plain)) + 16
    bar = _round_length(width * checked.um_per_px / 6)
    length = bar / checked.um_per_px
    label = f"{bar / 1000:g} mm" if bar >= 1000 else f"{bar:g} um"
    end = canvas.width - MARGIN
    pen.line((end - length, baseline + 15, end, baseline + 15), fill=INK, width=3)
    pen.text((end - pen.textlength(label, font=plain), baseline - 5), label, fill=INK, font=plain)
    return canvas


def save(checked: SlideCheck, path: Path) -> None:
    """Write the picture as JPEG; it appears only when complete."""
    with replacing(path) as temporary:
        draw(checked).save(temporary, "JPEG", quality=88, subsampling=0)


def _overlay(checked: SlideCheck) -> np.ndarray:
    picture = checked.thumbnail.copy()
    height, width = picture.shape[:2]
    grid, um = checked.grid, checked.um_per_px
    column = np.minimum(((np.arange(width) + 0.5) * um / grid.tile_um).astype(int), grid.columns - 1)
    row = np.minimum(((np.arange(height) + 0.5) * um / grid.tile_um).astype(int), grid.rows - 1)
    state = checked.state.reshape(grid.rows, grid.columns)[row[:, None], column[None, :]]
    cover = _COVER[state]
    # Diagonal lines tell what is out of focus from what is blank, for eyes that do not see the colours.
    diagonal = (np.arange(width)[None, :] + np.arange(height)[:, None]) % 7 == 0
    cover[(state == BLURRED) & diagonal] = 230
    if grid.tile_um / um >= 6:  # otherwise the lines would cover the tissue
        first_column, first_row = np.diff(column, prepend=-1) > 0, np.diff(row, prepend=-1) > 0
        last_column, last_row = np.append(first_column[1:], True), np.append(first_row[1:], True)
        lines = (first_column | last_column)[None, :] | (first_row | last_row)[:, None]
        cover[lines & (state != EMPTY)] = 190
    for channel in range(3):
        colour = _COLOURS[:, channel][state]
        picture[..., channel] = ((256 - cover) * picture[..., channel] + cover * colour) >> 8
    rows = np.minimum(
        ((np.arange(height) + 0.5) * um / checked.tissue.um_per_px).astype(int), len(checked.tissue.mask) - 1
    )
    columns = ((np.arange(width) + 0.5) * um / checked.tissue.um_per_px).astype(int)
    mask = checked.tissue.mask[rows[:, None], np.minimum(columns, checked.tissue.mask.shape[1] - 1)[None, :]]
    edge = np.zeros_like(mask)
    edge[:, 1:] |= mask[:, 1:] != mask[:, :-1]
    edge[1:] |= mask[1:] != mask[:-1]
    picture[edge] = INK
    return picture


def _round_length(length_um: float) -> float:
    """The largest of 1, 2, 5 times a power of ten that is not longer."""
    power = 10 ** math.floor(math.log10(length_um))
    return power * max(step for step in (1, 2, 5) if step * power <= length_um)


def _shortened(text: str, font: object, room: int) -> str:
    measure = font.getlength  # pyright: ignore[reportAttributeAccessIssue]
    if measure(text) <= room:
        return text
    while text and measure(text + "...") > room:
        text = text[:-1]
    return text + "..."

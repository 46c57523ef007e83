"""What the user tells us about the scale of features made by other tools, for all slides or slide by slide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dasmil.data.labels import plain_slide
from dasmil.data.text_table import plain_number, read_rows
from dasmil.errors import DataError, InputError, named, shown

NOMINAL = "nominal"
_COLUMNS = ("mpp", "tile_um", "width_px", "height_px")


@dataclass(frozen=True)
class Scale:
    """The scale of one slide: micrometres per level-0 pixel, tile edge in micrometres, size in level-0 pixels.

    nominal: take 10 um / magnification where a file states only the magnification of its objective.
    stride_px: the distance of neighbouring tiles in the cohort, for a slide that does not show its own.
    """

    mpp: float | None = None
    tile_um: float | None = None
    width_px: float | None = None
    height_px: float | None = None
    nominal: bool = False
    stride_px: float | None = None

    def __post_init__(self) -> None:
        for name in _COLUMNS:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} is {value!r}, expected a positive number")


@dataclass(frozen=True)
class Scales:
    """The scale for every slide: a default and a table of exceptions by ``plain_slide``.

    strides: of slides, also by ``plain_slide``, that take the stride of the cohort's grid.
    """

    default: Scale = field(default_factory=Scale)
    table: Mapping[str, Scale] = field(default_factory=dict)
    strides: Mapping[str, float] = field(default_factory=dict)

    def of(self, slide: str) -> Scale:
        """The scale of one slide; fields that the table leaves empty come from the default."""
        row = self.table.get(plain_slide(slide))
        known = {name: getattr(row, name) for name in _COLUMNS if row is not None and getattr(row, name) is not None}
        stride = self.strides.get(plain_slide(slide))
        return replace(self.default, **known, stride_px=stride) if known or stride is not None else self.default

    def without_slide(self, slides: Iterable[str]) -> list[str]:
        """The rows of the table that belong to none of these slides."""
        present = {plain_slide(slide) for slide in slides}
        return [name for name in self.table if name not in present]


def read_scales(mpp: float | str | None = None, tile_um: float | None = None, table: Path | None = None) -> Scales:
    """Build the scales from a command's options: ``mpp`` is a number or 'nominal', ``table`` a CSV per slide."""
    nominal = isinstance(mpp, str) and mpp.strip().lower() == NOMINAL
    number = None if nominal else plain_number(mpp) if isinstance(mpp, str) else mpp
    if number is None and mpp is not None and not nominal:
        raise InputError(f"mpp is {shown(mpp)}, expected micrometres per pixel (for example 0.25) or 'nominal'")
    default = Scale(mpp=number, tile_um=tile_um, nominal=nominal)
    return Scales(default, _read_table(Path(table)) if table is not None else {})


def _read_table(path: Path) -> dict[str, Scale]:
    header, rows = read_rows(path, f"scale table (columns slide and {', '.join(_COLUMNS)}):")
    columns = {name.lower(): name for name in header}
    if "slide" not in columns or not columns.keys() & set(_COLUMNS):
        raise DataError(
            f"{path}: columns are {named(header)}, expected slide and at least one of {', '.join(_COLUMNS)}"
        )
    table: dict[str, Scale] = {}
    for number, row in rows:
        slide = plain_slide(row[columns["slide"]])
        if not slide:
            raise DataError(f"{path}, line {number}: the slide name is empty; fill it in or remove the row")
        if slide in table:
            raise DataError(f"{path}, line {number}: slide {shown(slide)} is listed twice; keep one row")
        cells = {name: row[columns[name]] for name in _COLUMNS if name in columns}
        try:
            table[slide] = replace(Scale(), **{name: _number(name, cell) for name, cell in cells.items() if cell})
        except InputError as error:
            raise DataError(f"{path}, line {number}, slide {shown(slide)}: {error}") from None
    return table


def _number(name: str, cell: str) -> float:
    number = plain_number(cell)
    if number is None:
        raise InputError(f"{name} is {shown(cell)}, expected a number such as 0.25")
    return number

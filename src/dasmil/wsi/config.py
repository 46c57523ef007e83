"""Everything that decides what an extraction computes; all of it goes into the hash that names the result."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from dasmil.data.export import Format
from dasmil.errors import InputError, unknown_name
from dasmil.wsi.encoders import DEFAULT_ENCODER
from dasmil.wsi.resolution import MAX_MPP, MIN_MPP

Stain = Literal["macenko", "macenko-slide", "none"]
BagDtype = Literal["float16", "float32"]
Encode = Callable[[np.ndarray], np.ndarray]
"""A user's own encoder: uint8 [b, tile_px, tile_px, 3] -> float [b, dim]."""

MIN_TILE_UM, MAX_TILE_UM = 0.1, 100_000.0

PROCEDURE = 1
"""Raised whenever the same settings would give other tiles or other pixels than before."""


@dataclass(frozen=True)
class TissueConfig:
    """What counts as tissue. Lengths in micrometres on the slide, areas in square millimetres, shares from 0 to 1."""

    mask_um: float = 8.0
    """Pixel size of the picture on which the mask is drawn (coarser on very large slides)."""
    saturation_low: float = 0.05
    saturation_high: float = 0.15
    """Otsu's threshold of the saturation is held between these two: below, paper-white glass would count as tissue;
    above, pale tissue would not."""
    dark: float = 0.2
    """Pixels whose brightest colour is below this share of white are black: borders, black pen, not tissue."""
    pen: bool = True
    """Leave out green, blue and red pen."""
    close_um: float = 40.0
    """Gaps up to this width inside tissue are closed."""
    min_area_mm2: float = 0.02
    """Smaller pieces are dust."""
    max_hole_mm2: float = 0.05
    """Smaller holes are filled."""
    fraction: float = 0.1
    """A tile is kept when at least this share of it is tissue."""
    blank_share: float = 0.02
    """A tile is blank when fewer of its pixels than this are darker than blank_level."""
    blank_level: int = 220
    sharpness: float = 20.0
    """A tile is out of focus when the variance of its Laplacian at about 1 um/px is below this; 0 keeps all.
    Tiles of a real H&E slide have 500 to 5000 in focus, 10 to 50 blurred with a sigma of 2 um, below 5 with 4 um."""

    def __post_init__(self) -> None:
        for name in ("saturation_low", "saturation_high", "dark", "fraction", "blank_share"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(f"{name} is {value:g}, expected a share between 0 and 1")
        if self.saturation_low > self.saturation_high:
            raise InputError(
                f"saturation_low {self.saturation_low:g} is above saturation_high {self.saturation_high:g}"
            )
        for name in ("close_um", "min_area_mm2", "max_hole_mm2", "sharpness"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name):g}, expected 0 or more")
        if not 0 < self.mask_um < math.inf:
            raise InputError(f"mask_um is {self.mask_um:g}, expected more than 0 (micrometres per mask pixel)")
        if not 0 <= self.blank_level <= 255:
            raise InputError(f"blank_level is {self.blank_level}, expected 0 to 255")


@dataclass(frozen=True)
class ExtractConfig:
    """What is computed from a slide: its tiles, their stain, their features.

    tile_px None takes the encoder's own input size (224 for a function, 64 for "none", which keeps the pixels).
    encoder: a name (see `dasmil encoders`) or a Python function from uint8 [b, px, px, 3] to [b, dim]. mpp stands in
    for the slide's own resolution.
    """

    tile_um: float = 256.0
    tile_px: int | None = None
    stain: Stain = "macenko"
    encoder: str | Encode = DEFAULT_ENCODER
    weights: Path | None = None
    mpp: float | None = None
    dtype: BagDtype = "float16"
    format: Format = "dasmil"
    tissue: TissueConfig = field(default_factory=TissueConfig)

    def __post_init__(self) -> None:
        if not MIN_TILE_UM <= self.tile_um <= MAX_TILE_UM:
            raise InputError(
                f"tile_um is {self.tile_um:g}, expected the edge of a tile, {MIN_TILE_UM:g} to {MAX_TILE_UM:,.0f} um"
            )
        if self.tile_px is not None and not 8 <= self.tile_px <= 4096:
            raise InputError(f"tile_px is {self.tile_px}, expected 8 to 4096 pixels")
        for name, known in (("stain", Stain), ("dtype", BagDtype), ("format", Format)):
            if getattr(self, name) not in get_args(known):
                raise unknown_name(name, str(getattr(self, name)), get_args(known))
        if self.encoder == "none" and self.format != "dasmil":
            raise InputError(
                f"encoder 'none' keeps pixels, which files of {self.format} do not hold: leave --format out"
            )
        if self.mpp is not None and not MIN_MPP <= self.mpp <= MAX_MPP:
            raise InputError(f"mpp is {self.mpp:g}, expected {MIN_MPP:g} to {MAX_MPP:g} micrometres per pixel")

    def for_slide(self, mpp: float | None) -> ExtractConfig:
        """The same, with a resolution for one slide where there is one."""
        return self if mpp is None else replace(self, mpp=mpp)

    def described(self, encoder_name: str, encoder_sha256: str, tile_px: int) -> dict[str, Any]:
        """All of it as JSON: the weights by their content, not by where they lie."""
        values = asdict(replace(self, encoder=encoder_name, tile_px=tile_px))
        del values["weights"]
        return {"procedure": PROCEDURE, **values, "encoder_sha256": encoder_sha256}


@dataclass(frozen=True)
class RunOptions:
    """How an extraction runs; nothing here changes its result, so nothing here is hashed."""

    workers: int = 0
    """Threads that read and prepare tiles; 0 takes one per core, at most eight."""
    batch_size: int | None = None
    """Tiles encoded at once; None lets the encoder find out what fits."""
    device: str = "auto"
    force: bool = False
    qc: bool = True

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise InputError(f"workers is {self.workers}, expected 0 (one per core) or more")
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"batch_size is {self.batch_size}, expected 1 or more")
        if not re.fullmatch(r"auto|(cpu|cuda|mps)(:\d+)?", self.device):  # here, since not every encoder asks for one
            raise InputError(f"device is {self.device!r}, expected auto, cpu, cuda, cuda:N or mps")

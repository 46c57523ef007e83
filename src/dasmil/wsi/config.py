"""Everything that decides what an extraction computes; all of it goes into the hash that names the result."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from dasmil.data.layouts import Format
from dasmil.errors import InputError, unknown_name
from dasmil.wsi.resolution import MAX_MPP, MIN_MPP

if TYPE_CHECKING:
    from dasmil.data.restrict import Restriction

Stain = Literal["macenko", "macenko-slide", "none"]
BagDtype = Literal["float16", "float32"]
Encode = Callable[[np.ndarray], np.ndarray]
"""A user's own encoder: uint8 [b, tile_px, tile_px, 3] -> float [b, dim]."""

DEFAULT_ENCODER = "efficientnet-lite0"
MIN_TILE_UM, MAX_TILE_UM = 0.1, 100_000.0

PROCEDURE = 1
"""Raised whenever the same settings would give other tiles or other pixels than before."""


@dataclass(frozen=True)
class TissueConfig:
    """What counts as tissue. Lengths in micrometres on the slide, areas in square millimetres, shares from 0 to 1."""

    mask_um: float = 8.0
    """Pixel size in micrometres of the picture on which tissue is found (coarser on very large slides)."""
    saturation_low: float = 0.05
    """Otsu's threshold of the saturation is not taken below this: paper-white glass would count as tissue."""
    saturation_high: float = 0.15
    """Otsu's threshold of the saturation is not taken above this: pale tissue would not count."""
    dark: float = 0.2
    """Pixels darker than this share of white are borders or black pen."""
    pen: bool = True
    """Leave out green, blue and red pen."""
    fold: float = 0.0
    """Leave out folds: where the optical density is at least this many times that of the slide's tissue; 0 keeps all.
    """
    close_um: float = 40.0
    """Gaps in the tissue up to this width in micrometres are closed."""
    min_area_mm2: float = 0.02
    """Smaller pieces of tissue are dust."""
    max_hole_mm2: float = 0.05
    """Smaller holes in the tissue are filled."""
    fraction: float = 0.1
    """A tile is kept when at least this share of it is tissue."""
    blank_share: float = 0.02
    """A tile with fewer stained pixels than this share is blank."""
    blank_level: int = 220
    """A pixel is stained when its green value (0 to 255) is below this."""
    sharpness: float = 20.0
    """A tile is out of focus when the variance of its Laplacian is below this; 0 keeps all."""
    # At about 1 um/px. Tiles of a real H&E slide have 500 to 5000 in focus, 10 to 50 blurred with a sigma of 2 um, less
    # than 5 with 4 um.

    def __post_init__(self) -> None:
        for name in ("saturation_low", "saturation_high", "dark", "fraction", "blank_share"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(f"{name} is {value:g}, expected a share between 0 and 1")
        if self.saturation_low > self.saturation_high:
            raise InputError(
                f"saturation_low {self.saturation_low:g} is above saturation_high {self.saturation_high:g}"
            )
        if self.fold and not 1 < self.fold < math.inf:
            raise InputError(f"fold is {self.fold:g}, expected more than 1 (2 is tissue in two layers), or 0")
        for name in ("close_um", "min_area_mm2", "max_hole_mm2", "sharpness"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name):g}, expected 0 or more")
        if not 0 < self.mask_um < math.inf:
            raise InputError(f"mask_um is {self.mask_um:g}, expected more than 0 (micrometres per mask pixel)")
        if not 0 <= self.blank_level <= 255:
            raise InputError(f"blank_level is {self.blank_level}, expected 0 to 255")


@dataclass(frozen=True)
class ExtractConfig:
    """What is computed from a slide: its tiles, their stain, their features."""

    tile_um: float = 256.0
    """Edge of a tile in micrometres on the slide, whatever the scanner."""
    tile_px: int | None = None
    """Edge of a tile in pixels. Default: the encoder's own input size (of a function 224, of "none" 64)."""
    stain: Stain = "macenko"
    """Macenko's normalisation of every tile by itself (the paper's), fitted once per slide, or none."""
    encoder: str | Encode = DEFAULT_ENCODER
    """A name, see `dasmil encoders`, or a Python function from uint8 [b, px, px, 3] to [b, dim]."""
    weights: Path | None = None
    """File with the encoder's weights (.safetensors, or .pth read without running code)."""
    mpp: float | None = None
    """Micrometres per pixel of all slides, in place of what the files say."""
    dtype: BagDtype = "float16"
    """Type of the features in the product's own files."""
    format: Format = "dasmil"
    """Layout of the files: the product's own, or that of another tool."""
    tissue: TissueConfig = field(default_factory=TissueConfig)
    roi: str | None = None
    """Annotations (a file, or a folder of files named after slides): only tiles half inside are kept."""
    roi_class: str | None = None
    """Classes of --roi that count, separated by commas; default all."""
    exclude: str | None = None
    """Annotations, as roi: tiles at least half inside are left out."""
    exclude_class: str | None = None
    """Classes of --exclude that count, separated by commas; default all."""
    masks: str | None = None
    """Folder with the tissue that another program found, a file for each slide; in place of our own search."""

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

    def for_slide(self, mpp: float | None, **files: Path | None) -> ExtractConfig:
        """The same for one slide: its resolution where there is one, its own files of annotations (roi, exclude)."""
        own = replace(self, **{name: None if file is None else str(file) for name, file in files.items()})
        return own if mpp is None else replace(own, mpp=mpp)

    def restriction(self) -> Restriction | None:
        """The regions inside or outside of which tiles are kept; None where none were given."""
        from dasmil.data.restrict import read_restriction

        return read_restriction(self.roi, self.exclude, _names(self.roi_class), _names(self.exclude_class))

    def described(self, encoder_name: str, encoder_sha256: str, tile_px: int) -> dict[str, Any]:
        """All of it as JSON: the weights by their content, not by where they lie."""
        values = asdict(replace(self, encoder=encoder_name, tile_px=tile_px))
        del values["weights"]
        for name in ("roi", "exclude"):  # annotations by their content; without any the result is that of before
            path, classes = values.pop(name), values.pop(f"{name}_class")
            if path is not None:
                values[name] = hashlib.sha256(Path(path).read_bytes()).hexdigest() if Path(path).is_file() else path
            if classes is not None:
                values[f"{name}_class"] = classes
        if (masks := values.pop("masks")) is not None:
            values["masks"] = hashlib.sha256(Path(masks).read_bytes()).hexdigest() if Path(masks).is_file() else masks
        if not values["tissue"]["fold"]:
            del values["tissue"]["fold"]
        return {"procedure": PROCEDURE, **values, "encoder_sha256": encoder_sha256}


def _names(text: str | None) -> list[str]:
    return [name for part in (text or "").split(",") if (name := part.strip())]


@dataclass(frozen=True)
class RunOptions:
    """How an extraction runs; nothing here changes its result, so nothing here is hashed."""

    workers: int = 0
    """Threads that read and prepare tiles of one slide; 0 takes as many as --threads, else one per core up to eight."""
    batch_size: int | None = None
    """Tiles encoded at once; found automatically if not given."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    force: bool = False
    """Make again what is there, whatever it was made with."""
    qc: bool = True
    """Draw QC pictures and the contact sheet."""

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise InputError(f"workers is {self.workers}, expected 0 (one per core) or more")
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"batch_size is {self.batch_size}, expected 1 or more")
        if not re.fullmatch(r"auto|(cpu|cuda|mps)(:\d+)?", self.device):  # here, since not every encoder asks for one
            raise InputError(f"device is {self.device!r}, expected auto, cpu, cuda, cuda:N or mps")

"""The steps on one open slide: tissue, grid, tiles read and prepared by threads while the encoder works."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from dasmil.errors import DataError
from dasmil.wsi import qc
from dasmil.wsi.config import ExtractConfig, RunOptions
from dasmil.wsi.encoders import Encoder
from dasmil.wsi.masks import find_mask, read_mask
from dasmil.wsi.reader import Slide
from dasmil.wsi.stain import StainFit, apply_stains, fit_stains, normalise_tile
from dasmil.wsi.tiling import Grid, make_grid
from dasmil.wsi.tissue import MAX_MASK_PIXELS, TissueMask, find_tissue, is_blank, sharpness

Status = Literal["done", "skipped", "busy", "failed"]
Progress = Callable[[int, int], None]
"""Called with tiles done and tiles in all."""

IN_FLIGHT_BYTES = 128 * 2**20
BATCH_SIZE = 64
STAIN_SAMPLE_TILES, STAIN_SAMPLE_PIXELS = 32, 2_000_000


@dataclass
class SlideResult:
    """What became of one slide; all of it goes into the summary."""

    slide: str
    path: str
    status: Status = "failed"
    reason: str | None = None
    tiles: int = 0
    grid_tiles: int = 0
    blank: int = 0
    out_of_focus: int = 0
    outside: int = 0
    stain_unchanged: int = 0
    mpp: float | None = None
    mpp_origin: str | None = None
    reader: str | None = None
    seconds: float = 0.0
    bag: str | None = None
    qc: str | None = None
    warnings: list[str] = field(default_factory=list)


def worker_count(slide: Slide, config: ExtractConfig, encoder: Encoder, options: RunOptions) -> int:
    """Threads: as asked for, but fewer where each needs so much of a huge tile that memory would not be bounded."""
    wanted = options.workers or min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)
    pixels = slide.region_pixels(config.tile_um, config.tile_um / (config.tile_px or encoder.input_px))
    return max(1, min(wanted, int(IN_FLIGHT_BYTES * 2 / (12 * pixels))))


@dataclass(frozen=True)
class _Tile:
    index: int
    state: int
    pixels: np.ndarray | None = None
    normalised: bool = True


class SlideWork:
    """The steps on one open slide."""

    def __init__(
        self,
        slide: Slide,
        config: ExtractConfig,
        encoder: Encoder,
        options: RunOptions,
        pool: ThreadPoolExecutor,
        progress: Progress,
        result: SlideResult,
    ) -> None:
        self.slide, self.config, self.encoder, self.options = slide, config, encoder, options
        self.pool, self.progress, self.result = pool, progress, result
        self.tile_px = config.tile_px or encoder.input_px
        self.tile_um = config.tile_um
        result.mpp, result.mpp_origin, result.reader = slide.mpp, slide.mpp_origin, slide.reader
        result.warnings.extend(slide.warnings)
        target = self.tile_um / self.tile_px
        if slide.mpp > target * 1.05:
            result.warnings.append(
                f"tiles are enlarged: the slide has {slide.mpp:.4g} um/px, a tile {target:.4g} um/px"
            )
        self.grid: Grid = make_grid(slide.width_um, slide.height_um, self.tile_um)
        self.state = np.zeros(len(self.grid), np.uint8)
        self.fit: StainFit | None = None

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        """Centres [k, 2] in micrometres and features [k, dim] of the tiles that are kept."""
        self._find_tissue()
        x, y = self.grid.corners()
        share = self.tissue.fractions(x, y, self.tile_um)
        wanted = (share >= self.config.tissue.fraction) & (share > 0)
        if (restriction := self.config.restriction()) is not None:
            half, mpp = self.tile_um / 2, self.slide.mpp
            centres = np.stack([x + half, y + half], axis=1) / mpp
            inside = restriction.keeps(self.result.slide, centres, self.tile_um / mpp)
            self.result.outside = int((wanted & ~inside).sum())
            wanted &= inside
        candidates = np.nonzero(wanted)[0]
        self.result.grid_tiles = len(self.grid)
        if self.config.stain == "macenko-slide" and len(candidates):
            self._fit_slide(candidates)
        kept, features = self._encode(candidates)
        self.result.tiles = len(kept)
        self.result.blank = int((self.state == qc.BLANK).sum())
        self.result.out_of_focus = int((self.state == qc.BLURRED).sum())
        return self.grid.centres(kept), features

    def _find_tissue(self) -> None:
        slide, long_um = self.slide, max(self.slide.width_um, self.slide.height_um)
        mask_um = max(self.config.tissue.mask_um, math.sqrt(slide.width_um * slide.height_um / MAX_MASK_PIXELS))
        picture, um = slide.overview(mask_um, qc.LONG_SIDE, self.pool.map)
        self.tissue: TissueMask = self._given_mask(mask_um) or find_tissue(
            _shrunk(picture, um, mask_um, slide), max(mask_um, um), self.config.tissue
        )
        picture_um = long_um / qc.LONG_SIDE
        self.picture, self.picture_um = _shrunk(picture, um, picture_um, slide), max(picture_um, um)

    def _given_mask(self, mask_um: float) -> TissueMask | None:
        """The tissue that another program found; a slide without a mask is refused, not searched by other rules."""
        if self.config.masks is None:
            return None
        path = Path(self.config.masks)
        file = path if path.is_file() else find_mask(path, self.result.slide)
        return read_mask(file, self.slide.width, self.slide.height, self.slide.mpp, mask_um)

    def _fit_slide(self, candidates: np.ndarray) -> None:
        """One pair of stains for the whole slide, from tiles spread evenly over its tissue."""
        spread = np.linspace(0, len(candidates) - 1, min(STAIN_SAMPLE_TILES, len(candidates))).round().astype(int)
        tiles = [t.pixels for t in self.pool.map(self._read, candidates[spread]) if t.pixels is not None]
        if tiles:
            pixels = np.stack(tiles).reshape(-1, 3)
            self.fit = fit_stains(pixels[:: max(1, len(pixels) // STAIN_SAMPLE_PIXELS)])
        if self.fit is None:
            self.result.warnings.append("no two stains were found on the slide: its tiles are not normalised")

    def _read(self, index: int) -> _Tile:
        column, row = int(index) % self.grid.columns, int(index) // self.grid.columns
        pixels = self.slide.read_tile(column * self.tile_um, row * self.tile_um, self.tile_um, self.tile_px)
        if is_blank(pixels, self.config.tissue):
            return _Tile(index, qc.BLANK)
        if (
            self.config.tissue.sharpness > 0
            and sharpness(pixels, self.tile_um / self.tile_px) < self.config.tissue.sharpness
        ):
            return _Tile(index, qc.BLURRED)
        return _Tile(index, qc.KEPT, pixels)

    def _prepare(self, group: Sequence[int]) -> list[_Tile]:
        tiles = [self._read(index) for index in group]
        if self.config.stain == "none":
            return tiles
        ready = []
        for tile in tiles:
            if tile.pixels is not None:
                if self.config.stain == "macenko":
                    pixels, normalised = normalise_tile(tile.pixels)
                else:
                    normalised = self.fit is not None
                    pixels = apply_stains(tile.pixels, self.fit) if self.fit is not None else tile.pixels
                tile = _Tile(tile.index, tile.state, pixels, normalised)
            ready.append(tile)
        return ready

    def _prepared(self, candidates: np.ndarray) -> Iterator[_Tile]:
        """All candidates in order; threads work ahead, but never further than the bound on memory."""
        tile_bytes = self.tile_px * self.tile_px * 3
        # Small groups share few tiles evenly among the threads, larger ones save hand-overs where there are many.
        share = len(candidates) // (4 * worker_count(self.slide, self.config, self.encoder, self.options))
        size = max(1, min(8, share, IN_FLIGHT_BYTES // (16 * tile_bytes)))
        ahead = max(2, min(64, IN_FLIGHT_BYTES // (size * tile_bytes)))
        waiting: deque[Future[list[_Tile]]] = deque()
        for start in range(0, len(candidates), size):
            waiting.append(self.pool.submit(self._prepare, candidates[start : start + size].tolist()))
            if len(waiting) >= ahead:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()

    def _encode(self, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tile_bytes = self.tile_px * self.tile_px * 3
        batch_size = max(1, min(self.options.batch_size or BATCH_SIZE, IN_FLIGHT_BYTES // tile_bytes))
        batch = np.empty((batch_size, self.tile_px, self.tile_px, 3), np.uint8)
        features: np.ndarray | None = None
        kept: list[int] = []
        filled = 0

        def flush() -> None:
            nonlocal features, filled
            if not filled:
                return
            part = self.encoder.encode(batch[:filled])
            if features is None:
                kind = part.dtype if part.dtype == np.uint8 else np.dtype(self.config.dtype)  # pixels stay pixels
                features = np.empty((len(candidates), *part.shape[1:]), kind)
            with np.errstate(over="ignore"):
                rows = part.astype(features.dtype)
            if not np.isfinite(rows).all():
                why = "NaN or infinite" if not np.isfinite(part).all() else f"too large for {self.config.dtype}"
                raise DataError(f"{self.slide.path}: the encoder {self.encoder.name} gave features that are {why}")
            features[len(kept) - filled : len(kept)] = rows
            filled = 0

        self.progress(0, len(candidates))
        for done, tile in enumerate(self._prepared(candidates), 1):
            self.state[tile.index] = tile.state
            if tile.pixels is not None:
                batch[filled] = tile.pixels
                kept.append(int(tile.index))
                filled += 1
                self.result.stain_unchanged += not tile.normalised
            if filled == batch_size:
                flush()
                self.progress(done, len(candidates))
        flush()
        self.progress(len(candidates), len(candidates))
        if features is None:
            features = np.empty((0, 0), self.config.dtype)
        return np.array(kept, dtype=np.int64), features[: len(kept)]

    def why_empty(self) -> str:
        """Why no tile is left."""
        if not self.tissue.mask.any():
            return "no tissue was found on the slide"
        if self.result.outside and not (self.state != qc.EMPTY).any():
            return f"none of its {self.result.outside} tiles with tissue lies in the chosen regions"
        if not (self.state != qc.EMPTY).any():
            return f"no tile has {self.config.tissue.fraction:.0%} tissue or more"
        return f"all tiles with tissue are blank ({self.result.blank}) or out of focus ({self.result.out_of_focus})"

    def checked(self) -> qc.SlideCheck:
        """What the QC picture shows."""
        return qc.SlideCheck(
            self.result.slide,
            self.picture,
            self.picture_um,
            self.tissue,
            self.grid,
            self.state,
            self.slide.mpp,
            self.slide.mpp_origin,
        )


def _shrunk(picture: np.ndarray, from_um: float, to_um: float, slide: Slide) -> np.ndarray:
    """A picture of the slide at a coarser resolution; as it is if it is coarse enough."""
    from PIL import Image

    if to_um <= from_um * 1.001:
        return picture
    size = (math.ceil(slide.width_um / to_um), math.ceil(slide.height_um / to_um))
    box = (size[0] * to_um / from_um, size[1] * to_um / from_um)
    over = (max(0, math.ceil(box[1]) - picture.shape[0]), max(0, math.ceil(box[0]) - picture.shape[1]))
    padded = np.pad(picture, ((0, over[0]), (0, over[1]), (0, 0)), constant_values=255)
    return np.asarray(Image.fromarray(padded).resize(size, Image.Resampling.BILINEAR, box=(0, 0, *box)))

"""TIFF files that OpenSlide does not open, or not with all of their levels, through tifffile."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dasmil.errors import DataError
from dasmil.wsi.resolution import Resolution, from_ome, from_tiff_tags
from dasmil.wsi.sources import CACHE_BYTES, Level, OpenSlideSource, Source, need, true_downsample

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_SEGMENT_BYTES = 128 * 2**20
"""A block of a file is decoded as a whole: larger ones would break the bound on memory."""
_PLAIN = {1, 5, 7, 8, 32946}
"""Compressions that mean the same to every reader: none, LZW, JPEG, deflate (two numbers)."""


class TiffSource:
    """Plain, pyramidal and OME-TIFF through tifffile: only the blocks that a region needs are decoded."""

    kind = "tifffile"

    def __init__(self, path: Path, sizes: list[tuple[int, int]] | None = None) -> None:
        """sizes: of the levels, where another reader knows which of the pages they are."""
        tifffile = need("tifffile", "tifffile")
        need("imagecodecs", "imagecodecs")
        self._path = path
        self._file = tifffile.TiffFile(path)
        try:
            if not len(self._file.pages):
                raise DataError(f"{path}: the TIFF file ends before its first picture: truncated, copy it again")
            pages = self._level_pages() if sizes is None else self._pages_of(sizes)
            sizes = [(p[0].imagewidth, p[0].imagelength) for p in pages]
            order = sorted(range(len(pages)), key=lambda i: -sizes[i][0])
            self._pages = [pages[i] for i in order]
            base = sizes[order[0]]
            self.levels = [Level(*sizes[i], true_downsample(base, sizes[i])) for i in order]
            first = self._pages[0][0]
            ome = self._file.ome_metadata if self._file.is_ome else None
            self.resolution = from_ome(ome) if ome else Resolution()
            self.resolution = self.resolution.then(from_tiff_tags(first))
        except BaseException:
            self._file.close()
            raise
        self._reading = threading.Lock()
        self._cache: OrderedDict[tuple[int, int, int], np.ndarray] = OrderedDict()
        self._cached_bytes = 0

    def _level_pages(self) -> list[list[Any]]:
        series = list(self._file.series)
        base = max(series, key=lambda s: _size(s)[0] * _size(s)[1])
        levels = list(base.levels)
        if len(levels) == 1:  # pyramids without SubIFDs: pages of the same shape, each in a series of its own
            width, height = _size(base)
            for other in series:
                w, h = _size(other)
                if other is not base and w < width and abs(w * height / (width * h) - 1) < 0.01:
                    levels.append(other)
        return [self._channels(level) for level in levels]

    def _pages_of(self, sizes: list[tuple[int, int]]) -> list[list[Any]]:
        """The tiled page of each size, if there is one and only one, complete and of plain RGB."""
        found = []
        for size in sizes:
            pages: list[Any] = [p for p in self._file.pages if (p.imagewidth, p.imagelength) == size]
            if len(pages) != 1 or not pages[0].is_tiled or pages[0].shape != (size[1], size[0], 3):
                raise DataError(f"{self._path}: no single page of {size[0]} x {size[1]} px")
            if pages[0].dtype != np.uint8 or pages[0].compression not in _PLAIN or not all(pages[0].databytecounts):
                raise DataError(f"{self._path}: the page of {size[0]} x {size[1]} px is of a special kind")
            found.append(pages)
        return found

    def _channels(self, series: Any) -> list[Any]:
        """The pages of one level: one with all colours, or three with one colour each."""
        pages: list[Any] = list(series.pages)
        first = pages[0]
        axes = dict(zip(series.axes, series.shape, strict=True))
        others = {a: n for a, n in axes.items() if a not in "YXSC" and n > 1}
        colours = axes.get("C", 1) * axes.get("S", 1)
        if others or colours not in (1, 3, 4):
            raise DataError(
                f"{self._path}: axes {series.axes} of shape {tuple(series.shape)}: expected one colour picture "
                "(Y, X and 3 colours); export one plane of it as RGB"
            )
        if first.dtype is None or first.dtype != np.uint8:
            raise DataError(f"{self._path}: pixels are {first.dtype}, expected 8 bits a colour (uint8); convert it")
        if first.photometric == 3:
            raise DataError(f"{self._path}: the picture has a colour table (palette), expected RGB; convert it")
        rows, columns = _block_shape(first)
        size = rows * columns * (first.samplesperpixel if first.planarconfig == 1 else 1)
        if size > MAX_SEGMENT_BYTES:
            raise DataError(
                f"{self._path}: its blocks hold {size / 2**20:.0f} MB each, too much to read tiles from; "
                "save it as a tiled TIFF, for example: vips tiffsave IN OUT --tile --pyramid --compression jpeg"
            )
        return pages[:3] if len(pages) >= 3 and axes.get("C", 1) in (3, 4) else pages[:1]

    def read(self, level: int, x: int, y: int, width: int, height: int) -> tuple[Image, float, float]:
        from PIL import Image

        pages = self._pages[level]
        out = np.full((height, width, 3), 255, np.uint8)
        if len(pages) == 3:
            for channel in range(3):
                self._paste(level, channel, x, y, out[..., channel : channel + 1])
        else:
            self._paste(level, 0, x, y, out)
        return Image.fromarray(out), float(x), float(y)

    def _paste(self, level: int, page_index: int, x: int, y: int, out: np.ndarray) -> None:
        page = self._pages[level][page_index].keyframe  # the further pages of a series share its layout
        length, width = page.imagelength, page.imagewidth
        rows, columns = _block_shape(page)
        across, down = math.ceil(width / columns), math.ceil(length / rows)
        planes = page.samplesperpixel if page.planarconfig == 2 else 1
        top, bottom = max(y, 0), min(y + out.shape[0], length)
        left, right = max(x, 0), min(x + out.shape[1], width)
        if top >= bottom or left >= right:
            return
        for row in range(top // rows, (bottom - 1) // rows + 1):
            for column in range(left // columns, (right - 1) // columns + 1):
                y0, y1 = max(top, row * rows), min(bottom, (row + 1) * rows)
                x0, x1 = max(left, column * columns), min(right, (column + 1) * columns)
                for plane in range(min(planes, 3)):
                    block = self._segment(level, page_index, plane * across * down + row * across + column)
                    if block is None:
                        continue
                    part = block[y0 - row * rows : y1 - row * rows, x0 - column * columns : x1 - column * columns]
                    target = out[y0 - y : y1 - y, x0 - x : x1 - x]
                    if planes > 1:
                        target[..., plane] = part[..., 0]
                    elif part.shape[-1] in (2, 4):  # the last sample is opacity
                        alpha = part[..., -1:].astype(np.float32) / 255
                        target[...] = np.rint(part[..., :-1][..., :3] * alpha + 255 * (1 - alpha))
                    else:
                        target[...] = part[..., : target.shape[-1]]

    def _segment(self, level: int, page_index: int, index: int) -> np.ndarray | None:
        page = self._pages[level][page_index]
        key = (level, page_index, index)
        with self._reading:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
            if index >= len(page.databytecounts) or page.databytecounts[index] == 0:
                return None  # a block that the scanner left out: background
            handle = self._file.filehandle
            handle.seek(page.dataoffsets[index])
            data = handle.read(page.databytecounts[index])
        if len(data) < page.databytecounts[index]:
            raise DataError(f"{self._path}: the file ends in the middle of a block: truncated, copy it again")
        keyframe = page.keyframe
        decoded, _, _ = keyframe.decode(data, index, jpegtables=page.jpegtables, jpegheader=keyframe.jpegheader)
        if decoded is None:
            return None
        block = decoded[0]
        if keyframe.photometric == 0:  # 0 means white
            block = 255 - block
        with self._reading:
            known = self._cache.pop(key, None)  # another thread may have decoded the same block meanwhile
            self._cache[key] = block
            self._cached_bytes += block.nbytes - (0 if known is None else known.nbytes)
            while self._cached_bytes > CACHE_BYTES // 2:
                self._cached_bytes -= self._cache.popitem(last=False)[1].nbytes
        return block

    def embedded(self) -> Image | None:
        return None

    def close(self) -> None:
        self._file.close()


class AgreedSource:
    """A slide that OpenSlide describes and tifffile decodes, in less than half the time, pixel by pixel the same."""

    kind = "openslide + tifffile"

    def __init__(self, described: OpenSlideSource, decoded: TiffSource) -> None:
        self._described, self._decoded = described, decoded
        self.levels = [replace(level, exact=True) for level in described.levels]
        self.resolution = described.resolution

    def read(self, level: int, x: int, y: int, width: int, height: int) -> tuple[Image, float, float]:
        return self._decoded.read(level, x, y, width, height)

    def embedded(self) -> Image | None:
        return self._described.embedded()

    def close(self) -> None:
        self._described.close()
        self._decoded.close()


def open_with_openslide(path: Path) -> Source:
    """A slide through OpenSlide; simple TIFF is decoded by tifffile where both agree on a spot of every level."""
    described = OpenSlideSource(path)
    if described.vendor not in ("aperio", "generic-tiff"):
        return described
    try:
        decoded = TiffSource(path, [(level.width, level.height) for level in described.levels])
    except Exception:  # whatever tifffile does not like about the file: OpenSlide reads it
        return described
    for index, level in enumerate(described.levels):
        x, y = level.width // 2, level.height // 2
        side = min(64, level.width, level.height)
        theirs, x_exact, y_exact = described.read(index, x, y, side, side)
        ours, _, _ = decoded.read(index, x, y, side, side)
        allowed = 1 if (x_exact, y_exact) == (x, y) else 24  # OpenSlide blends neighbours when it begins between pixels
        if np.abs(np.asarray(theirs, np.int16) - np.asarray(ours, np.int16)).mean() > allowed:
            decoded.close()
            return described
    return AgreedSource(described, decoded)


def _size(series: Any) -> tuple[int, int]:
    page = series.keyframe
    return page.imagewidth, page.imagelength


def _block_shape(page: Any) -> tuple[int, int]:
    """Rows and columns of the blocks in which a TIFF page is stored: tiles, or strips of its full width."""
    if page.is_tiled:
        return page.tilelength, page.tilewidth
    return min(page.rowsperstrip, page.imagelength), page.imagewidth

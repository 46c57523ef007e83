"""One slide, whatever its format: regions are asked for in micrometres and come back as pixels."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dasmil.errors import DasmilError, DataError
from dasmil.wsi.resolution import choose_pixel_size
from dasmil.wsi.sources import PictureSource, Source, need
from dasmil.wsi.tiff_check import check_tiff
from dasmil.wsi.tiff_source import TiffSource, open_with_openslide

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")
PICTURES = (".jpg", ".jpeg", ".png")
TIFFS = (".tif", ".tiff", ".btf", ".tf8")
SUFFIXES = (
    *PICTURES,
    *TIFFS,
    *(".svs", ".svslide", ".ndpi", ".vms", ".vmu", ".scn", ".mrxs", ".bif", ".czi", ".dcm", ".qptiff"),
)
"""Endings that a folder is searched for; a file that is named outright is tried whatever its ending."""

MAX_REGION_PIXELS = 64 * 10**6
THUMBNAIL_TOLERANCE = 20
"""Grey levels by which the mean colour of a spot may differ between a slide and its own thumbnail."""
LEVEL_TOLERANCE = 1.01
"""A level counts as fine enough when its pixels are at most this much longer than asked for."""


class Slide:
    """An open slide; lengths in micrometres from the top left corner, tiles from the best level.

    Use it in a ``with`` block. Reading is safe from several threads at once.
    """

    def __init__(self, path: str | Path, mpp: float | None = None) -> None:
        self.path = Path(path)
        self._source = _open(self.path)
        try:
            size = choose_pixel_size(str(self.path), self._source.resolution, mpp)
        except BaseException:
            self._source.close()
            raise
        self.mpp, self.mpp_origin, self.warnings = size.mpp, size.origin, size.warnings
        self.mpp_told = size.told  # by the file, where another was given
        self.levels = self._source.levels
        self.reader = self._source.kind
        self.width, self.height = self.levels[0].width, self.levels[0].height
        self.width_um, self.height_um = self.width * self.mpp, self.height * self.mpp

    def __enter__(self) -> Slide:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go."""
        self._source.close()

    def best_level(self, um_per_px: float) -> int:
        """The coarsest level that is still as fine as asked for; level 0 if none is."""
        fine = [i for i, level in enumerate(self.levels) if self.mpp * level.downsample <= um_per_px * LEVEL_TOLERANCE]
        return max(fine, key=lambda i: self.levels[i].downsample) if fine else 0

    def region_pixels(self, size_um: float, um_per_px: float) -> float:
        """Pixels that are decoded for one square region."""
        return (size_um / (self.mpp * self.levels[self.best_level(um_per_px)].downsample)) ** 2

    def read_tile(self, x_um: float, y_um: float, size_um: float, size_px: int) -> np.ndarray:
        """A square tile as uint8 [size_px, size_px, 3]; what lies outside the slide is white."""
        return np.asarray(self._read(x_um, y_um, (size_px, size_px), size_um / size_px))

    def overview(
        self, max_um: float, wanted_px: int, map: Callable[..., Iterable[Any]] = map
    ) -> tuple[np.ndarray, float]:
        """The whole slide, uint8 [h, w, 3], and its um per pixel: at most max_um, or finer to be wanted_px long.

        Where no coarse level would make it cheap, the thumbnail that the scanner put into the file is taken, if it is
        fine enough and shows the same. map: an executor's map reads the blocks in parallel.
        """
        longest = max(self.width_um, self.height_um)
        if self.levels[self.best_level(max_um)].downsample < 3:
            small = self._checked_thumbnail(max_um)
            if small is not None:
                return small
        um_per_px = max(min(max_um, longest / wanted_px), self.mpp)
        return self.thumbnail(um_per_px, map), um_per_px

    def thumbnail(self, um_per_px: float, map: Callable[..., Iterable[Any]] = map) -> np.ndarray:
        """The whole slide at a coarse resolution, uint8 [h, w, 3]; read block by block, so memory stays small."""
        width, height = math.ceil(self.width_um / um_per_px), math.ceil(self.height_um / um_per_px)
        out = np.empty((height, width, 3), np.uint8)
        ratio = um_per_px / (self.mpp * self.levels[self.best_level(um_per_px)].downsample)
        step = max(16, int(1024 / max(ratio, 1)))

        def fill(corner: tuple[int, int]) -> None:
            x, y = corner
            size = (min(step, width - x), min(step, height - y))
            block = np.asarray(self._read(x * um_per_px, y * um_per_px, size, um_per_px))
            out[y : y + size[1], x : x + size[0]] = block

        for _ in map(fill, _blocks(width, height, step)):
            pass
        return out

    def _checked_thumbnail(self, max_um: float) -> tuple[np.ndarray, float] | None:
        """The file's own thumbnail, if it has the slide's shape and the slide's colours where it is compared.

        Compared at six of the spots of a grid on it, from the darkest to the brightest: a thumbnail of another region,
        as files cut from larger slides can carry, differs there.
        """
        from PIL import Image as images

        image = self._decoded("its own thumbnail", self._source.embedded)
        if image is None:
            return None
        um = max(self.width_um / image.width, self.height_um / image.height)
        if um > max_um or abs(image.width * self.height / (image.height * self.width) - 1) > 0.01:
            return None
        size = (math.ceil(self.width_um / um), math.ceil(self.height_um / um))
        picture = np.asarray(image.resize(size, images.Resampling.BILINEAR) if image.size != size else image)
        spot = max(2, round(64 * self.mpp / um))
        places = [
            (x, y)
            for y in range(0, size[1] - spot, max(spot, size[1] // 8))
            for x in range(0, size[0] - spot, max(spot, size[0] // 8))
        ]
        colours = [picture[y : y + spot, x : x + spot].reshape(-1, 3).mean(axis=0) for x, y in places]
        order = np.argsort([colour.sum() for colour in colours])
        for rank in np.linspace(0, len(order) - 1, 6).round().astype(int) if len(order) else ():
            (x, y), colour = places[order[rank]], colours[order[rank]]
            real = np.asarray(self._read(x * um, y * um, (spot, spot), um)).reshape(-1, 3).mean(axis=0)
            if np.abs(real - colour).max() > THUMBNAIL_TOLERANCE:
                return None
        return (picture, um) if places else None

    def _read(self, x_um: float, y_um: float, size: tuple[int, int], um_per_px: float) -> Image:
        """A region of size output pixels, resampled with a triangle filter that covers every pixel it shrinks."""
        from PIL import Image as images

        index = self.best_level(um_per_px)
        level_um = self.mpp * self.levels[index].downsample
        ratio = um_per_px / level_um
        left, top = x_um / level_um, y_um / level_um
        width, height = size[0] * ratio, size[1] * ratio
        if width * height > MAX_REGION_PIXELS:
            raise DataError(
                f"{self.path}: one tile covers {width:.0f} x {height:.0f} px of level {index}, too much to hold; "
                "use smaller tiles or a slide with a coarser level"
            )
        if abs(ratio - 1) < 1e-6 and abs(left - round(left)) < 1e-3 and abs(top - round(top)) < 1e-3:
            image, x, y = self._pixels(index, round(left), round(top), size[0], size[1])
            if abs(x - left) < 1e-3 and abs(y - top) < 1e-3:
                return image
        # Whole pixels around the region and no more: the filter ends at the edge, no neighbours are decoded for it.
        margin = 0 if self.levels[index].exact else 1
        x0, y0 = math.floor(left + 1e-6) - margin, math.floor(top + 1e-6) - margin
        x1, y1 = math.ceil(left + width - 1e-6) + margin, math.ceil(top + height - 1e-6) + margin
        image, x, y = self._pixels(index, x0, y0, x1 - x0, y1 - y0)
        right, bottom = min(left - x + width, image.width), min(top - y + height, image.height)
        box = (max(left - x, 0.0), max(top - y, 0.0), right, bottom)
        return image.resize(size, images.Resampling.BILINEAR, box=box)

    def _pixels(self, level: int, x: int, y: int, width: int, height: int) -> tuple[Image, float, float]:
        place = f"the pixels near ({x}, {y}) of level {level}"
        return self._decoded(place, lambda: self._source.read(level, x, y, width, height))

    def _decoded(self, what: str, read: Callable[[], T]) -> T:
        try:
            return read()
        except (DasmilError, OSError, MemoryError):  # a disk that is away for a moment is no damaged file
            raise
        except Exception as error:  # each decoder has errors of its own
            raise DataError(
                f"{self.path}: {what} cannot be decoded ({error}): the file is damaged there, copy it again"
            ) from error


def fingerprint(path: Path) -> str:
    """A name for the content of a slide file: its size and three samples of it, hashed (whole slides are gigabytes)."""
    digest = hashlib.sha256()
    files = [path]
    beside = path.with_suffix("")
    if path.suffix.lower() == ".mrxs" and beside.is_dir():  # Mirax keeps the pixels in a folder
        files += sorted(p for p in beside.iterdir() if p.is_file())
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name if file is not path else ''}:{size};".encode())
        with open(file, "rb") as stream:
            for start in sorted({0, max(0, size // 2 - 2**19), max(0, size - 2**20)}):
                stream.seek(start)
                digest.update(stream.read(2**20))
    return f"sampled-sha256:{digest.hexdigest()}"


def _open(path: Path) -> Source:
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "a device or a pipe"
        raise DataError(f"{path}: is {kind}, expected a slide file")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; copy it again")
    openslide = need("openslide-python", "openslide")
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # damaged files are reported once, by our own errors
    reasons: list[str] = []
    for kind, reader in _readers(path):
        try:
            return reader(path)
        except DasmilError:
            raise
        except openslide.OpenSlideUnsupportedFormatError:
            reasons.append(f"{kind}: format not known to it")
        except (OSError, ValueError, KeyError, IndexError, TypeError, RuntimeError, openslide.OpenSlideError) as error:
            reasons.append(f"{kind}: {str(error) or type(error).__name__}")
        except Exception as error:  # tifffile's errors have no common base; a damaged file must not stop a cohort
            reasons.append(f"{kind}: {type(error).__name__}: {error}")
    raise DataError(
        f"{path}: cannot be read as a slide ({'; '.join(reasons)}); if it should be one, the file is damaged or "
        "truncated: copy it again"
    )


def _readers(path: Path) -> Iterator[tuple[str, Callable[[Path], Source]]]:
    suffix = path.suffix.lower()
    with open(path, "rb") as stream:
        start = stream.read(8)
    is_tiff = start[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
    if is_tiff:
        check_tiff(path)
    if suffix in PICTURES or start.startswith((b"\xff\xd8\xff", b"\x89PNG")):
        yield "Pillow", PictureSource
        return
    if is_tiff and _hides_levels(path):
        yield "tifffile", TiffSource
        return
    yield "OpenSlide", open_with_openslide
    if is_tiff:
        yield "tifffile", TiffSource


def _hides_levels(path: Path) -> bool:
    """OME-TIFF and TIFF with levels in SubIFDs: OpenSlide would open some of them, but not see their coarser levels."""
    tifffile, openslide = need("tifffile", "tifffile"), need("openslide-python", "openslide")
    if openslide.OpenSlide.detect_format(str(path)) not in (None, "generic-tiff"):
        return False  # a scanner's own layout, which OpenSlide knows better
    try:
        with tifffile.TiffFile(path) as file:
            return bool(file.is_ome or file.pages[0].subifds)
    except Exception:  # damaged: the readers themselves say how
        return False


def _blocks(width: int, height: int, step: int) -> list[tuple[int, int]]:
    return [(x, y) for y in range(0, height, step) for x in range(0, width, step)]

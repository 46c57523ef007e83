"""What reads pictures, behind one small interface (levels, regions in level pixels): OpenSlide and Pillow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dasmil.errors import DataError, MissingDependencyError
from dasmil.wsi.resolution import Resolution, from_dpi, from_properties

if TYPE_CHECKING:
    from PIL.Image import Image

CACHE_BYTES = 256 * 2**20
"""Decoded pixels kept per slide: a row of tiles shares the file's own blocks, and small slides fit whole."""
MAX_PICTURE_PIXELS = 128 * 10**6
"""Pillow decodes JPEG and PNG at once, at 4 bytes a pixel: half a gigabyte."""

WHITE = (255, 255, 255)


@dataclass(frozen=True)
class Level:
    """One resolution of a slide; downsample = level-0 pixels per pixel of this level."""

    width: int
    height: int
    downsample: float
    exact: bool = True
    """Whether regions begin where they are asked to, and not up to half a level-0 pixel beside it."""


class Source(Protocol):
    """An open picture. ``read`` returns RGB and the exact place, in level pixels, of its top left corner.

    Regions may reach over the border: outside is white. ``read`` may be called from several threads at once.
    """

    kind: str
    levels: list[Level]
    resolution: Resolution

    def read(self, level: int, x: int, y: int, width: int, height: int) -> tuple[Image, float, float]: ...

    def embedded(self) -> Image | None:
        """A small picture of the whole slide that the scanner put into the file, RGB; not to be trusted unchecked."""
        ...

    def close(self) -> None: ...


def true_downsample(base: tuple[int, int], size: tuple[int, int]) -> float:
    """The factor between two levels, freed from the rounding of the smaller one's size to whole pixels.

    2967 px halved twice are 741, not 741.75: the ratio of the sizes is 4.004, but the pixels are 4 apart.
    """
    ratio = (base[0] / size[0] + base[1] / size[1]) / 2
    whole = round(ratio)
    if whole >= 1 and all(abs(b / whole - s) < 1 for b, s in zip(base, size, strict=True)):
        return float(whole)
    return ratio


def need(package: str, module: str) -> Any:
    """Import a package of the extra `slides`, or say how to get it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(package, "slides", "reading slides") from error


class OpenSlideSource:
    """Everything OpenSlide opens, DICOM included."""

    kind = "openslide"

    def __init__(self, path: Path) -> None:
        openslide = need("openslide-python", "openslide")
        self._slide = openslide.OpenSlide(str(path))
        self._slide.set_cache(openslide.OpenSlideCache(CACHE_BYTES))
        sizes = self._slide.level_dimensions
        self._factors = self._slide.level_downsamples
        self.levels = [
            Level(w, h, true_downsample(sizes[0], (w, h)), exact=factor == int(factor))
            for (w, h), factor in zip(sizes, self._factors, strict=True)
        ]
        self.vendor = self._slide.properties.get("openslide.vendor")
        self.resolution = from_properties(dict(self._slide.properties))

    def read(self, level: int, x: int, y: int, width: int, height: int) -> tuple[Image, float, float]:
        factor = self._factors[level]
        x0, y0 = round(x * factor), round(y * factor)
        image = self._slide.read_region((x0, y0), level, (width, height))
        return over_white(image), x0 / factor, y0 / factor

    def embedded(self) -> Image | None:
        if "openslide.associated.thumbnail.width" not in self._slide.properties:
            return None
        return over_white(self._slide.associated_images["thumbnail"].convert("RGBA"))

    def close(self) -> None:
        self._slide.close()


class PictureSource:
    """JPEG and PNG as slides of one level, through Pillow."""

    kind = "pillow"

    def __init__(self, path: Path) -> None:
        image_module = need("pillow", "PIL.Image")
        limit, image_module.MAX_IMAGE_PIXELS = image_module.MAX_IMAGE_PIXELS, None  # ours is stricter, and an error
        try:
            image = image_module.open(path)
        finally:
            image_module.MAX_IMAGE_PIXELS = limit
        width, height = image.size
        if width * height > MAX_PICTURE_PIXELS:
            raise DataError(
                f"{path}: {width} x {height} px in one {image.format} is more than {MAX_PICTURE_PIXELS // 10**6} "
                "million pixels, which would have to be decoded at once; save it as a tiled TIFF"
            )
        self.resolution = from_dpi(image.info.get("dpi"))
        if image.mode not in ("RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "YCbCr"):
            raise DataError(f"{path}: pixels of kind {image.mode!r}, expected 8 bits a colour; convert it to RGB")
        image.load()
        if image.mode in ("RGBA", "LA") or "transparency" in image.info:
            image = over_white(image.convert("RGBA"))
        self._image = image if image.mode == "RGB" else image.convert("RGB")
        self.levels = [Level(width, height, 1.0)]

    def read(self, level: int, x: int, y: int, width: int, height: int) -> tuple[Image, float, float]:
        from PIL import Image

        w, h = self._image.size
        box = (max(x, 0), max(y, 0), min(x + width, w), min(y + height, h))
        if box == (x, y, x + width, y + height):
            return self._image.crop(box), float(x), float(y)
        out = Image.new("RGB", (width, height), WHITE)
        if box[0] < box[2] and box[1] < box[3]:
            out.paste(self._image.crop(box), (box[0] - x, box[1] - y))
        return out, float(x), float(y)

    def embedded(self) -> Image | None:
        return None

    def close(self) -> None:
        self._image.close()


def over_white(image: Image) -> Image:
    """An RGBA picture as RGB, what is transparent (never scanned) as white."""
    from PIL import Image as images

    if image.getchannel("A").getextrema() == (255, 255):
        return image.convert("RGB")
    out = images.new("RGB", image.size, WHITE)
    out.paste(image, mask=image.getchannel("A"))
    return out

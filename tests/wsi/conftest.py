"""Made-up slides: shapes at known places in micrometres, at any resolution, in several file formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

WHITE, PINK, PURPLE = (255, 255, 255), (214, 120, 170), (120, 60, 150)

# left, top, right, bottom in micrometres; every edge is a multiple of 4 um, so that it lies between two pixels
# of every level used here
SHAPES = (
    ((100, 60, 420, 380), PINK),
    ((160, 120, 200, 160), PURPLE),
    ((260, 200, 300, 320), PURPLE),
    ((560, 300, 900, 700), PINK),
    ((600, 340, 640, 380), PURPLE),
    ((820, 500, 860, 660), PURPLE),
)
WIDTH_UM, HEIGHT_UM = 1024, 768


def render(um_per_px: float, left: float = 0, top: float = 0, width: float = WIDTH_UM, height: float = HEIGHT_UM):
    """The scene as pixels, the colour of each taken at its centre."""
    x = left + (np.arange(round(width / um_per_px)) + 0.5) * um_per_px
    y = top + (np.arange(round(height / um_per_px)) + 0.5) * um_per_px
    out = np.full((len(y), len(x), 3), 255, np.uint8)
    for (x0, y0, x1, y1), colour in SHAPES:
        inside = ((y >= y0) & (y < y1))[:, None] & ((x >= x0) & (x < x1))[None, :]
        out[inside] = colour
    return out


def write_slide(path: Path, mpp: float, factors: tuple[int, ...] = (1, 2, 4), resolution: bool = True) -> Path:
    """A tiled, pyramidal TIFF without loss, as OpenSlide opens it."""
    import tifffile

    with tifffile.TiffWriter(path) as file:
        for factor in factors:
            file.write(
                render(mpp * factor),
                tile=(128, 128),
                photometric="rgb",
                compression="deflate",
                resolution=(1e4 / mpp / factor, 1e4 / mpp / factor) if resolution else None,
                resolutionunit="CENTIMETER" if resolution else None,
                subfiletype=1 if factor > 1 else 0,
                metadata=None,
                software=False,
            )
    return path


@pytest.fixture
def made_slide(tmp_path: Path) -> Callable[..., Path]:
    """Write the scene as a slide: name, mpp, factors of the levels."""

    def make(name: str = "made.tif", mpp: float = 0.5, factors: tuple[int, ...] = (1, 2, 4), **options: bool) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        return write_slide(path, mpp, factors, **options)

    return make


@pytest.fixture
def scene() -> Callable[..., np.ndarray]:
    """Render any part of the scene at any resolution."""
    return render


@pytest.fixture
def real_slide() -> Path:
    """CMU-1-Small-Region: Aperio, 2220 x 2967 px, 0.499 um/px."""
    return Path(__file__).parents[1] / "data" / "CMU-1-Small-Region.svs"

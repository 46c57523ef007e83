"""The picture under a bag: its MNIST collage, or the slide file of the same name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dasmil.errors import DataError, InputError, ScaleError
from dasmil.study.scale import TOLERANCE

if TYPE_CHECKING:
    import numpy as np

    from dasmil.attribution.ground import Ground
    from dasmil.types import Bag
    from dasmil.wsi.reader import Slide


class SlideGround:
    """A slide seen through the bag's unit."""

    def __init__(self, slide: Slide, unit: str) -> None:
        self.slide = slide
        self.um = 1.0 if unit == "um" else slide.mpp  # micrometres in one unit
        self.width, self.height = slide.width_um / self.um, slide.height_um / self.um

    def thumbnail(self, per_px: float) -> np.ndarray:
        return self.slide.thumbnail(per_px * self.um)

    def tile(self, x: float, y: float, side: float, side_px: int) -> np.ndarray:
        return self.slide.read_tile(x * self.um, y * self.um, side * self.um, side_px)


def open_slide(path: Path, bag: Bag) -> tuple[Ground, float]:
    """The slide as the ground of a bag, with its level-0 pixels per unit; refused if it is not the bag's slide."""
    from dasmil.attribution.ground import check_ground
    from dasmil.data.match import shortened
    from dasmil.wsi.reader import Slide, fingerprint

    slides = bag.metadata.get("slides", ())
    if len(slides) > 1:
        raise DataError(
            f"bag {bag.bag_id!r} joins {len(slides)} slides ({shortened(slides)}), which have no picture in common: "
            "show it without a slide"
        )
    made_from = bag.metadata.get("source_fingerprint")
    if made_from and path.is_file() and fingerprint(path) != made_from:
        raise DataError(f"{path} is not the file that bag {bag.bag_id!r} was made from: its content differs")
    slide = Slide(path, mpp=bag.metadata.get("mpp"))
    told, extracted = slide.mpp_told, bag.metadata.get("mpp_origin") is not None  # by dasmil, which saw the slide
    if told is not None and not extracted and abs(slide.mpp / told - 1) > TOLERANCE:
        slide.close()
        raise ScaleError(
            f"{path} says {told:.4g} um/px, but bag {bag.bag_id!r} was read with {slide.mpp:.4g} um/px: its distances "
            f"would be {slide.mpp / told:.3g} times the true ones. If the slide is right, read the bag with --mpp "
            f"{told:.4g}; a run that was trained with the other scale must be trained again"
        )
    ground = SlideGround(slide, bag.unit)
    check_ground(bag, ground, f"{path} ({slide.width:,} x {slide.height:,} px of {slide.mpp:.4g} um)")
    return ground, ground.um / slide.mpp


def ground_of(bag: Bag, slide: Path | None) -> Ground | None:
    """The picture that a bag was cut from: the slide, or its own collage; None for a plain ground."""
    if slide is None:
        opened = open_ground(bag, None)
        return None if opened is None else opened[0]
    if not slide.exists():
        raise InputError(f"the slide {slide} does not exist: leave --slide out for a map on a plain ground")
    return open_slide(slide, bag)[0]


def open_ground(bag: Bag, slides: Path | None) -> tuple[Ground, float] | None:
    """The collage of a digit bag, else the slide in the folder that has the bag's name; None without a folder."""
    if bag.features.ndim == 4 and bag.unit == "px" and bag.metadata.get("collage_px"):
        from dasmil.attribution.ground import CollageGround

        return CollageGround(bag), 1.0
    if slides is None:
        return None
    from dasmil.wsi.reader import SUFFIXES

    stem = Path(bag.bag_id).name
    found = [p for p in sorted(slides.iterdir()) if p.suffix.lower() in SUFFIXES and stem in (p.stem, p.name)]
    if not found:
        raise DataError(f"no slide named {stem} ({', '.join(SUFFIXES[:6])}, ...) is in {slides}")
    return open_slide(found[0], bag)

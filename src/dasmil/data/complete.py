"""Slides of a cohort that cannot be read, and patients who lack one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dasmil.data.formats import FeatureFile
from dasmil.data.grid import FORMATS, with_cohort_grid
from dasmil.data.labels import LabelRow, plain_slide
from dasmil.data.match import NO_FILE, Slide
from dasmil.data.source import BagSource
from dasmil.errors import DataError, ScaleError


@dataclass
class Examination:
    """What the files of slides say (by slide), those that cannot be read with the reason, and remarks on their grid."""

    seen: dict[str, FeatureFile]
    unreadable: dict[str, str]
    grid: list[str]


def examined(slides: Sequence[Slide], source: BagSource, *, features: bool) -> Examination:
    """Look at the files of slides; features: these are read and checked too, and stay in the source.

    Files that do not say what a tile is are looked at once more together: slides with too few tiles to show their
    stride take that of the others.
    """
    seen: dict[str, FeatureFile] = {}
    reasons: dict[str, str] = {}
    unplaced: dict[str, ScaleError] = {}

    def look(slide: Slide, path: Path) -> None:
        try:
            seen[slide.name] = source.brief(path, features=features)
        except ScaleError as error:
            unplaced[slide.name] = error
        except DataError as error:
            reasons[slide.name] = str(error)

    paths = {slide: slide.path for slide in slides if slide.path is not None}
    for slide, path in paths.items():
        look(slide, path)
    asked = {
        slide: path
        for slide, path in paths.items()
        if slide.name in unplaced or (slide.name in seen and seen[slide.name].probe.format in FORMATS)
    }
    source.scales, grid = with_cohort_grid(list(asked.values()), source.scales)
    for slide, path in asked.items():
        if plain_slide(slide.name) in source.scales.strides:
            unplaced.pop(slide.name, None)
            look(slide, path)
    if unplaced:
        raise next(iter(unplaced.values()))
    return Examination(seen, reasons, grid)


def lacking_slides(
    slides: Sequence[Slide],
    unreadable: Mapping[str, str],
    patients: Mapping[str, str] | None,
    labels: Sequence[LabelRow] | None,
) -> dict[str, list[str]]:
    """Patients of whom a slide cannot be read or has no file, with these slides and why.

    Which slides there should be says ``patients`` (the slide table), or ``labels`` where slides are joined; patients
    without any file are then no part of the cohort.
    """
    table, owners = "slide table", patients or {}
    if labels is not None:
        here = {slide.patient for slide in slides}
        table, owners = "label table", {row.slide: row.patient for row in labels if row.patient and row.patient in here}
    found: dict[str, list[str]] = {}
    for slide in slides:
        if slide.name in unreadable:
            found.setdefault(slide.patient or slide.name, []).append(
                f"slide {slide.name} cannot be read: {unreadable[slide.name]}"
            )
    present = {plain_slide(slide.name) for slide in slides}
    for name, patient in owners.items():
        if name not in present:
            found.setdefault(patient, []).append(f"slide {name} of the {table} {NO_FILE}")
    return found

"""Slides of a cohort that cannot be read, and patients who lack one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dasmil.data.formats import read_features
from dasmil.data.labels import LabelRow, plain_slide
from dasmil.data.match import NO_FILE, Match, Slide
from dasmil.data.scale import Scales
from dasmil.errors import DataError, ScaleError


def unreadable_slides(
    matched: Match, scales: Scales, features: bool, sizes: dict[str, tuple[float | None, float | None]]
) -> dict[str, str]:
    """The slides that cannot be read, with the reason; features: these are read and checked too.

    sizes: takes tile and pixel of the others, in um.
    """
    reasons: dict[str, str] = {}
    for slide in matched.slides:
        if slide.path is not None:
            try:
                found = read_features(slide.path, scales.of(slide.name), features=features)
                if not np.isfinite(found.coords).all():
                    raise DataError(f"{slide.path}: instances have NaN or infinite coordinates; repair them")
                if found.features.size and not np.isfinite([found.features.min(), found.features.max()]).all():
                    bad = int((~np.isfinite(found.features)).any(axis=1).sum())
                    raise DataError(
                        f"{slide.path}: {bad:,} of {len(found.features):,} instances have NaN or infinite features; "
                        "extract the slide again, or remove these instances"
                    )
                sizes[slide.name] = (found.tile_um, found.mpp)
            except ScaleError:
                raise
            except DataError as error:
                reasons[slide.name] = str(error)
    return reasons


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

"""The doctor's look at sites: do features and labels of a cohort know where a slide comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.data.columns import FurtherColumns
from dasmil.data.labels import LabelRow, plain_slide
from dasmil.data.match import Candidate, match_labels, shortened
from dasmil.data.sites import look_at_sites
from dasmil.errors import DasmilError
from dasmil.stats import FollowUp
from dasmil.tasks import Task


def check_sites(
    candidates: Sequence[Candidate],
    labels: Sequence[LabelRow],
    positive: str | None,
    sites: FurtherColumns,
    means: Mapping[str, NDArray[np.float64]],
    task: Task | None = None,
) -> tuple[list[str], dict[str, Any], list[str]]:
    """Lines for people, the same for machines, and warnings; means: mean features by slide."""
    (column,) = sites.names
    try:
        matched = match_labels(candidates, labels, positive=positive)
    except DasmilError:  # the check of labels has said it
        return [], {}, []
    finite = {name: mean for name, mean in means.items() if np.isfinite(mean).all()}
    known, warnings = [], []
    for slide in matched.slides:
        cells = sites.slides.get(plain_slide(slide.name)) or sites.patients.get(slide.patient or "") or {}
        known.append(cells.get(column))
    missing = [slide.name for slide, site in zip(matched.slides, known, strict=True) if site is None]
    if missing:
        warnings.append(f"{len(missing)} slides have no {column}: {shortened(missing)}; training with it would stop")
    widths = {len(mean) for mean in finite.values()}
    rows = [i for i, slide in enumerate(matched.slides) if known[i] is not None and slide.name in finite]
    if len(widths) != 1 or not rows:
        return [], {}, warnings
    slides = [matched.slides[i] for i in rows]
    found = look_at_sites(
        np.stack([finite[slide.name] for slide in slides]),
        [str(known[i]) for i in rows],
        [slide.patient or f"slide {slide.name}" for slide in slides],
        [slide.label for slide in slides],
        matched.classes,
        _follow_up(task, [slide.targets for slide in slides]),
        what="Label" if task is None else (task.alone.strata_title if task.alone else task.targets[0].name),
    )
    return found.lines(), found.as_json(), warnings + ([found.warning] if found.warning else [])


def _follow_up(task: Task | None, targets: Sequence[tuple[tuple[str, float | None], ...] | None]) -> FollowUp | None:
    """Times and events of slides, where that is what is asked."""
    if task is None or task.kind != "survival":
        return None
    values = np.array([[float(value or 0.0) for _, value in own or ()] for own in targets])
    return FollowUp(values[:, 0], values[:, 1] == 1)

"""Do scores lie where annotations are? AUROC, Dice and FROC of tiles against outlines, per slide and for a cohort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.spatial import KDTree

from dasmil.stats import auroc, mean_over_patients
from dasmil.types import Explanation

FALSE_POSITIVES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Per slide: FROC is the mean share of lesions found at these (CAMELYON16)."""
APART = 3.0
"""A detection is the highest tile within this many tile sides; lower ones belong to it."""
MOST = 200  # detections of a slide
INSIDE = 0.5
RESAMPLES = 2000


@dataclass(frozen=True)
class Detections:
    """Candidates of one slide, highest score first: the lesion each lies in (-1: none); count: of all lesions."""

    scores: np.ndarray
    lesions: np.ndarray
    count: int


@dataclass(frozen=True)
class SlideScore:
    """How well one score finds the annotated tiles of one slide.

    annotated: tiles at least half inside; auroc: of these against all others, NaN where one kind is missing; dice: of
    as many of the highest tiles as are annotated (so it is precision and recall at once), NaN without any.
    """

    slide: str
    patient: str
    score: str
    tiles: int
    annotated: int
    auroc: float
    dice: float
    detections: Detections = field(repr=False, compare=False)


@dataclass(frozen=True)
class CohortScore:
    """The mean over slides with annotations, with 95 % intervals over patients, and FROC over all slides."""

    score: str
    slides: int
    annotated_slides: int
    auroc: float
    auroc_interval: tuple[float, float]
    dice: float
    dice_interval: tuple[float, float]
    froc: float
    lesions: int


def score_slide(
    slide: str,
    patient: str,
    name: str,
    values: np.ndarray,
    shares: np.ndarray,
    lesions: Sequence[np.ndarray],
    centres: np.ndarray,
    side: float,
) -> SlideScore:
    """One score of a slide. values, shares [n]: the score and the share inside annotations; lesions: of each region the
    share [n] of every tile inside it; centres [n, 2] and side in one unit."""
    inside = shares >= INSIDE
    count = int(inside.sum())
    both = 0 < count < len(inside)
    highest = np.argsort(-values, kind="stable")[:count]
    return SlideScore(
        slide, patient, name, len(values), count,
        float(auroc(values, inside)[0]) if both else float("nan"),
        float(inside[highest].mean()) if count else float("nan"),
        _detections(values, lesions, centres, side),
    )  # fmt: skip


def _detections(values: np.ndarray, lesions: Sequence[np.ndarray], centres: np.ndarray, side: float) -> Detections:
    tree, free = KDTree(centres), np.ones(len(values), dtype=bool)
    chosen: list[int] = []
    for index in np.argsort(-values, kind="stable"):
        if not free[index]:
            continue
        if not values[index] > 0 or len(chosen) == MOST:  # what speaks against the class detects nothing
            break
        chosen.append(int(index))
        free[tree.query_ball_point(centres[index], APART * side)] = False
    found = np.full(len(chosen), -1)
    for number, share in enumerate(lesions):
        found[share[chosen] > 0] = number
    return Detections(values[chosen], found, sum(bool((share > 0).any()) for share in lesions))


def froc(slides: Sequence[Detections]) -> float:
    """Mean share of lesions that are found at 0.25 to 8 false detections per slide; NaN without lesions."""
    total = sum(slide.count for slide in slides)
    if not total:
        return float("nan")
    rows = [
        (float(score), number, int(lesion))
        for number, slide in enumerate(slides)
        for score, lesion in zip(slide.scores, slide.lesions, strict=True)
    ]
    rows.sort(key=lambda row: -row[0])
    found: set[tuple[int, int]] = set()
    wrong, reached = 0, dict.fromkeys(FALSE_POSITIVES, 0)
    for _, number, lesion in rows:
        if lesion < 0:
            wrong += 1
        else:
            found.add((number, lesion))
        for rate in FALSE_POSITIVES:
            if wrong <= rate * len(slides):
                reached[rate] = len(found)
    return float(np.mean([hits / total for hits in reached.values()]))


def score_cohort(slides: Sequence[SlideScore]) -> CohortScore:
    """One score over the slides of a cohort; those without annotations count in FROC only."""
    known = [slide for slide in slides if np.isfinite(slide.auroc)]

    def mean(name: str) -> tuple[float, tuple[float, float]]:
        values = np.array([getattr(slide, name) for slide in known])
        if not len(values):
            return float("nan"), (float("nan"), float("nan"))
        low, high = mean_over_patients(values, [slide.patient for slide in known], RESAMPLES)
        return float(values.mean()), (low, high) if len(known) > 1 else (float("nan"), float("nan"))

    (area, area_ends), (dice, dice_ends) = mean("auroc"), mean("dice")
    detections = [slide.detections for slide in slides]
    return CohortScore(
        slides[0].score, len(slides), len(known), area, area_ends, dice, dice_ends, froc(detections),
        sum(one.count for one in detections),
    )  # fmt: skip


def scored_values(explanation: Explanation) -> Mapping[str, np.ndarray]:
    """The scores of an explanation that may lie where annotations are."""
    return {name: values.double().cpu().numpy() for name, values in explanation.scores.items()}

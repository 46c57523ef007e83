"""Joining slides with their labels: what fits becomes the cohort, what does not is named, contradictions stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dasmil.data.labels import LabelRow, class_names, plain_slide
from dasmil.errors import DataError, InputError


@dataclass(frozen=True)
class Slide:
    """A slide with what its label table says of it."""

    name: str
    path: Path | None
    label: int | None
    patient: str | None
    split: str | None


@dataclass(frozen=True)
class CohortReport:
    """What was joined and what was left over; lists hold names, nothing is dropped without being in one of them."""

    n_slides: int
    n_patients: int
    classes: dict[str, int] = field(default_factory=dict)
    slides_without_label: list[str] = field(default_factory=list)
    labels_without_slide: list[str] = field(default_factory=list)
    empty_labels: list[str] = field(default_factory=list)
    repeated_rows: list[str] = field(default_factory=list)
    splits: dict[str, int] = field(default_factory=dict)

    @property
    def unmatched(self) -> list[str]:
        """One line for each kind of leftover."""
        kinds = (
            ("slides without a label", self.slides_without_label),
            ("labels without a slide", self.labels_without_slide),
            ("slides whose label is empty", self.empty_labels),
            ("slides listed twice with the same values", self.repeated_rows),
        )
        return [f"{len(names)} {kind}: {shortened(names)}" for kind, names in kinds if names]

    def lines(self) -> list[str]:
        """The report for people."""
        counts = ", ".join(f"{count} of class {name}" for name, count in self.classes.items()) or "no labels"
        head = f"{self.n_slides} slides of {self.n_patients} patients; {counts}"
        if self.splits:
            head += "; " + ", ".join(f"{name} {count}" for name, count in self.splits.items())
        return [head, *self.unmatched]


@dataclass(frozen=True)
class Matched:
    slides: list[Slide]
    classes: tuple[str, ...]
    report: CohortReport


def shortened(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def match_labels(
    found: Sequence[tuple[str, Path | None]],
    labels: Sequence[LabelRow] | None,
    classes: Sequence[str] | None = None,
    own: Sequence[LabelRow] | None = None,
) -> Matched:
    """Join slides with label rows by name; ``own`` are labels that the bags carry, used when there is no table."""
    counts = Counter(name for name, _ in found)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        paths = [str(path) for name, path in found if name == twice[0]]
        raise DataError(
            f"{len(twice)} slide names occur more than once, for example {twice[0]!r} in {' and '.join(paths[:2])}; "
            "give each slide one feature file"
        )
    if labels is None and own is None:
        slides = [Slide(name, path, None, None, None) for name, path in found]
        return Matched(slides, (), CohortReport(n_slides=len(slides), n_patients=len(slides)))
    rows, repeated = _unique(labels if labels is not None else own or [])
    key = {name: plain_slide(name) if labels is not None else name for name, _ in found}
    present = set(key.values())
    slides: list[Slide] = []
    without, empty = [], []
    named = {row.label for row in rows.values() if row.label is not None}
    used = {row.label for slide, row in rows.items() if row.label is not None and slide in present}
    names = class_names(used if classes is None else named, classes)
    for name, path in found:
        row = rows.get(key[name])
        if row is None:
            without.append(name)
        elif row.label is None:
            empty.append(name)
        else:
            slides.append(Slide(name, path, names.index(row.label), row.patient, row.split))
    missing = [slide for slide in rows if slide not in present]
    if not slides:
        raise DataError(
            f"no slide has a label: the bags are named like {shortened([name for name, _ in found], 2)}, "
            f"the label table like {shortened(list(rows), 2)}; the names must be equal but for folder and file ending"
        )
    _check_patients(slides)
    report = CohortReport(
        n_slides=len(slides),
        n_patients=len({slide.patient if slide.patient is not None else f"slide {slide.name}" for slide in slides}),
        classes={name: sum(slide.label == i for slide in slides) for i, name in enumerate(names)},
        slides_without_label=without,
        labels_without_slide=missing,
        empty_labels=empty,
        repeated_rows=repeated,
        splits=dict(Counter(slide.split for slide in slides if slide.split is not None)),
    )
    return Matched(slides, names, report)


def check_trainable(report: CohortReport) -> None:
    """Training needs two classes; a cohort of one gets an error that says what was found."""
    present = {name: count for name, count in report.classes.items() if count}
    if len(present) < 2:
        what = ", ".join(f"{count} of class {name!r}" for name, count in present.items()) or "no labelled slides"
        raise InputError(f"found {what} only; training needs slides of at least two classes")


def _unique(labels: Sequence[LabelRow]) -> tuple[dict[str, LabelRow], list[str]]:
    rows: dict[str, LabelRow] = {}
    repeated: list[str] = []
    for row in labels:
        known = rows.get(row.slide)
        if known is None:
            rows[row.slide] = row
        elif known == row:
            repeated.append(row.slide)
        else:
            raise DataError(
                f"slide {row.slide!r} is listed twice with different values: label {known.label} and {row.label}, "
                f"patient {known.patient} and {row.patient}, split {known.split} and {row.split}; keep one row"
            )
    return rows, repeated


def _check_patients(slides: Sequence[Slide]) -> None:
    """A patient in two splits would leak from training into the test: stop."""
    splits: dict[str, set[str]] = {}
    for slide in slides:
        if slide.split is not None:
            splits.setdefault(slide.patient or f"slide {slide.name}", set()).add(slide.split)
    leaks = {patient: sorted(names) for patient, names in splits.items() if len(names) > 1}
    if leaks:
        patient, names = next(iter(leaks.items()))
        raise DataError(
            f"{len(leaks)} patients are in more than one split, for example {patient!r} in {' and '.join(names)}; "
            "put all slides of a patient into one split"
        )
    partly = [slide.name for slide in slides if slide.split is None]
    if splits and partly:
        raise DataError(
            f"{len(partly)} slides have no split while others have one: {shortened(partly)}; fill in the split column"
        )

"""Joining slides with their labels: what fits becomes the cohort, what does not is named, contradictions stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasmil.data.formats import Probe, probe_features, slide_name
from dasmil.data.labels import LabelRow, as_number, class_names, plain_slide
from dasmil.data.text_table import composed
from dasmil.errors import WORD, DasmilError, DataError, InputError, named, shown

if TYPE_CHECKING:
    from dasmil.data.checks import Finding


@dataclass(frozen=True)
class Candidate:
    """A bag before it is matched, with the class number and the patient that it carries itself."""

    name: str
    path: Path | None = None
    label: int | None = None
    patient: str | None = None


@dataclass(frozen=True)
class Slide:
    """A slide with what is known of it: from its label table, else from the bag itself."""

    name: str
    path: Path | None
    label: int | None
    patient: str | None
    split: str | None
    targets: tuple[tuple[str, float | None], ...] | None = None


NO_FILE = "has no file"
MISSING = ("none", "unknown", "missing", "?", "-", "--", ".", "-9", "-99", "-999", "999", "9999")
"""Words that stand for a missing value in some tables, and may be a class in others."""
WARNED = ("same slides", "leak", "slides disagree", "repeated instances")


@dataclass(frozen=True)
class CohortReport:
    """What was joined and what was left over; lists hold names, nothing is dropped without being in one of them.

    unreadable: slides that were left out because their file is damaged, empty or without positions, with the reason.
    are_classes: False where the classes are those by which splits of another task are balanced.
    incomplete: patients of whom a slide cannot be read, or is in the table of slides and has no file; which, and why.
    grid: what was taken from other slides where tiles lie too far apart to show their stride.
    sizes: of slides in files, the edge of a tile in um and the um per level-0 pixel, where they are known.
    looked: what is known of each bag that was read; findings: what is wrong with them, as `dasmil doctor` says it.
    """

    n_slides: int
    n_patients: int
    classes: dict[str, int] = field(default_factory=dict)
    are_classes: bool = True
    slides_without_label: list[str] = field(default_factory=list)
    labels_without_slide: list[str] = field(default_factory=list)
    empty_labels: list[str] = field(default_factory=list)
    repeated_rows: list[str] = field(default_factory=list)
    scales_without_slide: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    incomplete: dict[str, list[str]] = field(default_factory=dict)
    sizes: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    other_patient: list[str] = field(default_factory=list)
    other_label: list[str] = field(default_factory=list)
    splits: dict[str, int] = field(default_factory=dict)
    grid: list[str] = field(default_factory=list)
    looked: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        """What the doctor warns of and training goes on with."""
        return [f"Warning: {one.check}: {one.message}" for one in self.findings if one.check in WARNED]

    @property
    def unmatched(self) -> list[str]:
        """One line for each kind of leftover."""
        kinds = (
            ("slides without a label", self.slides_without_label),
            ("labels without a slide", self.labels_without_slide),
            ("slides whose label is empty", self.empty_labels),
            ("slides listed twice with the same values", self.repeated_rows),
            ("rows of the scale table without a slide", self.scales_without_slide),
        )
        return _listed(kinds) + self.left_out + self.without_some

    @property
    def left_out(self) -> list[str]:
        """A line for slides that cannot be read, with the reason of the first."""
        if not self.unreadable:
            return []
        slides, reason = list(self.unreadable), next(iter(self.unreadable.values()))
        if len(slides) == 1:
            return [f"1 slide left out, because it cannot be read: {slides[0]}: {reason}"]
        return [f"{len(slides)} slides left out, because they cannot be read: {shortened(slides)}; the first: {reason}"]

    @property
    def without_some(self) -> list[str]:
        """A line for patients of whom a slide that a table names is missing."""
        gone = {who: lines for who, lines in self.incomplete.items() if any(NO_FILE in line for line in lines)}
        if not gone:
            return []
        first = next(line for line in next(iter(gone.values())) if NO_FILE in line)
        table = first.partition(" of the ")[2].removesuffix(f" {NO_FILE}")
        return [f"{len(gone)} patients lack a slide of the {table}: {shortened(list(gone))}; the first: {first}"]

    @property
    def overruled(self) -> list[str]:
        """One line for each kind of value that a bag carries and the label table contradicts: the table counts."""
        kinds = (
            ("slides whose bag names another patient than the label table, which counts", self.other_patient),
            ("slides whose bag has another class number than the label table, which counts", self.other_label),
        )
        return _listed(kinds)

    @property
    def doubtful(self) -> list[str]:
        """Class names that are most likely one class written in two ways, or a word for a missing value."""
        groups: dict[float | str, list[str]] = {}
        for name in self.classes:
            number = as_number(name)
            groups.setdefault(name.casefold() if number is None else number, []).append(name)
        alike = [
            f"{' and '.join(map(shown, names))} count as {len(names)} classes; write them alike if they are one"
            for names in groups.values()
            if len(names) > 1
        ]
        missing = [name for name in self.classes if name.casefold() in MISSING]
        return alike + [f"{shown(name)} counts as a class; empty its cells if the label is missing" for name in missing]

    def lines(self) -> list[str]:
        """The report for people."""
        head = f"{self.n_slides} slides of {self.n_patients} patients"
        if self.are_classes:
            counts = ", ".join(f"{count} of class {name[:WORD]}" for name, count in self.classes.items())
            head += f"; {counts or 'no labels'}"
        if self.splits:
            head += "; " + ", ".join(f"{name} {count}" for name, count in self.splits.items())
        return [head, *self.unmatched, *self.overruled, *self.doubtful, *self.grid, *self.warnings]


@dataclass(frozen=True)
class Match:
    slides: list[Slide]
    classes: tuple[str, ...]
    report: CohortReport


def shortened(names: Sequence[str], most: int = 5) -> str:
    """The first few names, each cut where it is long, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name if len(name) <= WORD else f"{name[:WORD]}..." for name in names[:most]) + rest


def _listed(kinds: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    return [f"{len(names)} {kind}: {shortened(names)}" for kind, names in kinds if names]


def candidate(path: Path, probe: Probe | None = None) -> Candidate:
    """A feature file to be matched; only dasmil's own bag files carry a class number and a patient.

    probe: what it says about itself, where it was looked at already.
    """
    if probe is None:
        try:
            probe = probe_features(path)
        except DasmilError:  # damaged, which is said when it is read
            return Candidate(slide_name(path), path)
    patient = None if probe.patient_id is None else composed(probe.patient_id)
    return Candidate(slide_name(path), path, probe.label, patient)


def match_labels(
    found: Sequence[Candidate],
    labels: Sequence[LabelRow] | None,
    classes: Sequence[str] | None = None,
    positive: str | None = None,
) -> Match:
    """Join slides with label rows by name; what the table does not say is taken from the bags.

    Without a table every bag stays, with the class number that it carries, if any. With one, a slide needs its label
    there; a patient that the table leaves open is that of the bag.
    """
    counts = Counter(plain_slide(bag.name) for bag in found)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        paths = [str(bag.path or bag.name) for bag in found if plain_slide(bag.name) == twice[0]]
        raise DataError(
            f"{len(twice)} slide names occur more than once, for example {shown(twice[0])} in "
            f"{' and '.join(paths[:2])}; give each slide one feature file"
        )
    if labels is None:
        slides = [Slide(bag.name, bag.path, bag.label, bag.patient, None) for bag in found]
        names = _carried_classes(found, classes)
        return Match(slides, names, CohortReport(len(slides), _count_patients(slides), _count_classes(slides, names)))
    rows, repeated = _unique(labels)
    present = {plain_slide(bag.name) for bag in found}
    slides: list[Slide] = []
    without, empty, other_patient, other_label = [], [], [], []
    used = {row.label for slide, row in rows.items() if row.label is not None and slide in present}
    names = class_names(used, classes, positive)
    for bag in found:
        row = rows.get(plain_slide(bag.name))
        if row is None:
            without.append(bag.name)
            continue
        if row.label is None:
            empty.append(bag.name)
            continue
        label, patient = names.index(row.label), row.patient if row.patient is not None else bag.patient
        slides.append(Slide(bag.name, bag.path, label, patient, row.split, row.targets))
        if bag.patient is not None and patient != bag.patient:
            other_patient.append(bag.name)
        if row.targets is None and bag.label is not None and bag.label != label and str(bag.label) != row.label:
            other_label.append(bag.name)
    if not slides:
        raise _nothing_matched(found, rows, empty)
    _check_patients(slides)
    report = CohortReport(
        n_slides=len(slides),
        n_patients=_count_patients(slides),
        classes=_count_classes(slides, names),
        are_classes=all(slide.targets is None for slide in slides),
        slides_without_label=without,
        labels_without_slide=[slide for slide in rows if slide not in present],
        empty_labels=empty,
        repeated_rows=repeated,
        other_patient=other_patient,
        other_label=other_label,
        splits=dict(Counter(slide.split for slide in slides if slide.split is not None)),
    )
    return Match(slides, names, report)


def _nothing_matched(found: Sequence[Candidate], rows: Mapping[str, LabelRow], empty: Sequence[str]) -> DataError:
    if empty:
        return DataError(
            f"no slide has a label: the cells of all {len(empty)} slides that the label table names are empty; "
            "fill them in, or name the right column with --label-column"
        )
    alike = {plain_slide(bag.name).casefold() for bag in found} & {slide.casefold() for slide in rows}
    hint = "only the case differs: write the names alike" if alike else "they must be equal but for folder and ending"
    return DataError(
        f"no slide has a label: the bags are named like {shortened([bag.name for bag in found], 2)}, "
        f"the label table like {shortened(list(rows), 2)}; {hint}"
    )


def without_unreadable(matched: Match, unreadable: Mapping[str, str]) -> Match:
    """The cohort without the slides that cannot be read, which its report names; one without any other is an error."""
    if not unreadable:
        return matched
    slides = [slide for slide in matched.slides if slide.name not in unreadable]
    if not slides:
        reason = next(iter(unreadable.values()))
        raise DataError(
            f"none of the {len(unreadable)} slides can be read; the first: {reason}" if len(unreadable) > 1 else reason
        )
    report = replace(
        matched.report,
        n_slides=len(slides),
        n_patients=_count_patients(slides),
        classes=_count_classes(slides, matched.classes),
        splits=dict(Counter(slide.split for slide in slides if slide.split is not None)),
        unreadable=dict(unreadable),
    )
    return Match(slides, matched.classes, report)


def one_class_parts(parts: Mapping[str, Iterable[int | None]], classes: Sequence[str]) -> list[str]:
    """A line for a validation or test set (given by its class numbers) that has a single class."""
    lines: list[str] = []
    for name, what in (("val", "validation"), ("test", "test")):
        present = [classes[label] for label in set(parts.get(name, ())) if label is not None]
        if len(present) == 1:
            lines.append(
                f"the {what} set has class {shown(present[0])} only, expected at least two classes: "
                "without them there is no AUROC and no balanced accuracy"
            )
    return lines


def check_trainable(report: CohortReport) -> None:
    """Training needs two classes; a cohort of one gets an error that says what was found."""
    present = {name: count for name, count in report.classes.items() if count}
    if len(present) < 2:
        what = ", ".join(f"{count} of class {shown(name)}" for name, count in present.items()) or "no labelled slides"
        raise DataError(f"found {what} only; training needs slides of at least two classes")


def _carried_classes(found: Sequence[Candidate], classes: Sequence[str] | None) -> tuple[str, ...]:
    numbers = [bag.label for bag in found if bag.label is not None]
    if not numbers:
        return ()
    names = tuple(map(str, range(max(numbers) + 1))) if classes is None else tuple(classes)
    if max(numbers) >= len(names):
        raise InputError(
            f"classes were given as {named(names)}, but a bag has the class number {max(numbers)}: "
            "name every class, the first is number 0"
        )
    return names


def _count_patients(slides: Sequence[Slide]) -> int:
    return len({slide.patient if slide.patient is not None else f"slide {slide.name}" for slide in slides})


def _count_classes(slides: Sequence[Slide], names: Sequence[str]) -> dict[str, int]:
    return {name: sum(slide.label == i for slide in slides) for i, name in enumerate(names)}


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
            names = ("label", "patient", "split", "targets")
            values = ((name, getattr(known, name), getattr(row, name)) for name in names)
            different = ", ".join(
                f"{name} {shown(one)} and {shown(other)}" for name, one, other in values if one != other
            )
            raise DataError(
                f"slide {shown(row.slide)} is listed twice with different values: {different}; keep one row"
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
            f"{len(leaks)} patients are in more than one split, for example {shown(patient)} in {' and '.join(names)}; "
            "put all slides of a patient into one split"
        )
    partly = [slide.name for slide in slides if slide.split is None]
    if splits and partly:
        raise DataError(
            f"{len(partly)} slides have no split while others have one: {shortened(partly)}; fill in the split column"
        )

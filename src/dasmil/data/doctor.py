"""Checks of a folder of features before days of training are spent on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dasmil.data.checks import Finding, check_copies, check_mixture, check_patients, check_repeats, grouped, look
from dasmil.data.columns import FurtherColumns
from dasmil.data.doctor_tasks import TaskShowing, check_task
from dasmil.data.formats import find_feature_files, probe_features, read_features, slide_name
from dasmil.data.labels import LabelRow, plain_slide
from dasmil.data.match import Candidate, Match, candidate, check_trainable, match_labels, one_class_parts, shortened
from dasmil.data.positive import positive_text
from dasmil.data.scale import Scale, Scales
from dasmil.data.showing import Showing, showing_text, what_shows
from dasmil.data.site_check import check_sites
from dasmil.errors import DasmilError
from dasmil.tasks import Task

NEIGHBOURS = 80
"""How many instances a suggested radius holds: enough to see a surrounding, few enough to cost little."""


@dataclass(frozen=True)
class Known:
    """What the user said of the slides: the rows of the label table, what they mean, and where slides come from."""

    labels: Sequence[LabelRow] | None = None
    positive: str | None = None
    sites: FurtherColumns | None = None
    task: Task | None = None
    per_patient: bool = False


@dataclass(frozen=True)
class Checkup:
    """What the doctor saw: one row per slide, findings, and the rules by which coordinates were read."""

    rows: list[dict[str, Any]]
    findings: list[Finding]
    rules: dict[str, int]
    cohort: list[str] = field(default_factory=list)
    shows: list[dict[str, Any]] = field(default_factory=list)
    """What a cohort of this size can show, for machines; `cohort` says it in words."""
    sites: dict[str, Any] = field(default_factory=dict)
    """How well sites can be told, where their column was given."""

    @property
    def healthy(self) -> bool:
        """No errors; warnings are for the user to judge."""
        return not any(finding.level == "error" for finding in self.findings)

    @property
    def of_cells(self) -> bool:
        """Whether instances are cells: points, that lie on no grid."""
        return any("radius_um" in row for row in self.rows)

    @property
    def radius_um(self) -> float | None:
        """A radius that holds about NEIGHBOURS instances, from their spacing; None where it was not seen."""
        measured = [row["radius_um"] for row in self.rows if row.get("radius_um")]  # of cells, which lie on no grid
        if measured:
            return float(f"{np.median(measured):.2g}")
        strides = [row["stride_um"] for row in self.rows if row.get("stride_um")]
        if not strides or self.of_cells:
            return None
        return float(f"{np.median(strides) * np.sqrt(NEIGHBOURS / np.pi):.2g}")

    def as_json(self) -> dict[str, Any]:
        return {"healthy": self.healthy, "radius_um": self.radius_um, **asdict(self)}


def check_bags(
    bags: Path,
    labels: Sequence[LabelRow] | None = None,
    scales: Scales | None = None,
    positive: str | None = None,
    sites: FurtherColumns | None = None,
    task: Task | None = None,
    *,
    per_patient: bool = False,
) -> Iterator[Any]:
    """Look at every file; yields (done, total, slide) while at work and the Checkup at the end.

    sites: the column of the label table with the site of a slide, to ask how well features and labels tell it; task:
    what the labels say where that is no class; per_patient: slides are to become one bag a patient.
    """
    scales = scales or Scales()
    files = find_feature_files(bags)
    rows: list[dict[str, Any]] = []
    findings: list[Finding] = []
    rules: Counter[str] = Counter()
    means: dict[str, np.ndarray] = {}
    carried: list[Candidate] = []
    for number, path in enumerate(files):
        yield number, len(files), slide_name(path)
        row, found, rule, own = _check_file(path, scales.of(slide_name(path)), means if sites is not None else None)
        rows.append(row)
        carried.append(own)
        findings += found
        if rule:
            rules[rule] += 1
    findings = grouped(findings) + check_mixture(rows)
    unused = scales.without_slide(row["slide"] for row in rows)
    if unused:
        findings.append(Finding("warning", "scale table", f"{len(unused)} rows without a slide: {shortened(unused)}"))
    known = Known(labels, positive, sites, task, per_patient)
    yield check_cohort(rows, findings, rules, carried, known, means)


def check_cohort(
    rows: list[dict[str, Any]],
    findings: list[Finding],
    rules: Mapping[str, int],
    found: Sequence[Candidate],
    known: Known,
    means: Mapping[str, np.ndarray],
) -> Checkup:
    """The checkup of bags that were looked at one by one: labels and sites of the cohort, errors before warnings."""
    cohort: list[str] = []
    shows: Sequence[Showing | TaskShowing] = []
    owners = {row.slide: row.patient for row in known.labels or ()}
    patients = {bag.name: owners.get(plain_slide(bag.name)) or bag.patient for bag in found}
    findings = findings + check_copies(rows, patients) + check_patients(patients.values()) + check_repeats(rows)
    if known.labels is not None:
        cohort, shows, more = _check_labels(found, known.labels, known)
        findings = findings + more
    site: dict[str, Any] = {}
    if known.sites is not None and known.labels is not None:
        told, site, more = check_sites(found, known.labels, known.positive, known.sites, means, known.task)
        cohort, findings = cohort + told, findings + [Finding("warning", "sites", line) for line in more]
    order = {"error": 0, "warning": 1}
    return Checkup(rows, sorted(findings, key=lambda finding: order[finding.level]), dict(rules), cohort,
                   [part.as_json() for part in shows], site)  # fmt: skip


def _check_file(
    path: Path, scale: Scale, means: dict[str, np.ndarray] | None = None
) -> tuple[dict[str, Any], list[Finding], str | None, Candidate]:
    slide = slide_name(path)
    row: dict[str, Any] = {"slide": slide, "path": str(path), "format": None, "tiles": None, "features": None}
    probe = file = None
    check, message = "unreadable", ""
    try:
        file = read_features(path, scale)
        probe = file.probe
    except DasmilError as error:
        message = str(error)
        with suppress(DasmilError):
            probe = probe_features(path)
    own = Candidate(slide, path) if probe is None else candidate(path, probe)
    if probe is not None:
        row |= {"format": probe.format, "tiles": probe.n, "features": probe.in_features, "encoder": probe.encoder}
        if probe.n_coords not in (None, probe.n):
            check, message = "count mismatch", f"{probe.n} rows of features but {probe.n_coords} of coords"
    if file is None:
        return row, [Finding("error", check, message, (slide,))], None, own
    row, findings = look(file, scale, slide)
    if means is not None and len(file.features):
        means[slide] = np.asarray(file.features, dtype=np.float64).mean(0)
    return row, findings, file.rule, own


def _check_labels(
    found: Sequence[Candidate], labels: Sequence[LabelRow], known: Known
) -> tuple[list[str], Sequence[Showing | TaskShowing], list[Finding]]:
    positive = known.positive
    try:
        matched = match_labels(found, labels, positive=positive)
    except DasmilError as error:
        return [], [], [Finding("error", "labels", str(error))]
    report = matched.report
    findings: list[Finding] = [Finding("warning", "labels", line) for line in (*report.unmatched, *report.overruled)]
    if known.task is not None:
        lines, told, wrong = check_task(matched, known.task, per_patient=known.per_patient)
        return lines, told, findings + [Finding(*one) for one in wrong]
    try:
        check_trainable(report)
    except DasmilError as error:
        findings.append(Finding("error", "one class only", str(error)))
    findings += [Finding("warning", "class names", line) for line in report.doubtful]
    if report.splits:
        findings += _check_splits(matched)
    else:
        findings += [Finding("warning", "few patients", line) for line in _few_patients(matched)]
    said, shows = positive_text(matched.classes, "as given" if positive else ""), _shows(matched)
    return [*report.lines()[:1], *filter(None, [said, showing_text(shows, matched.classes)])], shows, findings


def _shows(matched: Match) -> list[Showing]:
    splits: dict[str, list[int]] = {}
    for number, slide in enumerate(matched.slides):
        if slide.split:
            splits.setdefault(slide.split, []).append(number)
    patients = [slide.patient or f"slide {slide.name}" for slide in matched.slides]
    return what_shows(patients, [slide.label for slide in matched.slides], splits, matched.classes)


def _check_splits(matched: Match) -> Iterator[Finding]:
    """The split column must leave every class to training; a set of one class cannot be scored."""
    parts: dict[str, list[int | None]] = {}
    for slide in matched.slides:
        parts.setdefault(slide.split or "", []).append(slide.label)
    if "train" not in parts:
        yield Finding("error", "splits", f"the split column has {', '.join(parts)} but no slide for train")
    else:
        lacking = [repr(name) for number, name in enumerate(matched.classes) if number not in parts["train"]]
        if lacking:
            yield Finding("error", "splits", f"no training slide has class {', '.join(lacking)}: put some into train")
    for line in one_class_parts(parts, matched.classes):
        yield Finding("warning", "splits", line)


def _few_patients(matched: Match) -> Iterator[str]:
    """A split by patient gives every class at least one patient for training, validation and test."""
    for number, name in enumerate(matched.classes):
        patients = {slide.patient or f"slide {slide.name}" for slide in matched.slides if slide.label == number}
        if len(patients) < 3:
            yield (
                f"class {name!r} has {len(patients)} patient{'s' * (len(patients) != 1)}, expected at least 3: "
                "training, validation and test need one each"
            )

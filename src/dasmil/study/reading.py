"""Bags for a run that exists: its own, read again from what it noted, or others, read as its own were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasmil.errors import DataError, InputError
from dasmil.runs import BuiltIn, Camelyon16, InMemory, OwnCohort, origin_from
from dasmil.study.data import built_in_split
from dasmil.study.notes import Note, silent
from dasmil.study.scale import check_scale
from dasmil.study.spec import BagSpec, CohortSpec, cohort_lines
from dasmil.tasks import task_from

if TYPE_CHECKING:
    from dasmil.data.cohort import Cohort
    from dasmil.types import Bag

# What another cohort shares with the one a run was trained on; its files, labels and scale are its own.
_ALIKE = (
    "slide_column", "label_column", "patient_column", "per_patient", "max_instances", "bag_column", "x_column",
    "y_column", "one_hot", "feature_columns", "unit", "task", "time_column", "event_column", "time_unit", "survival",
    "time_bins", "times", "target_columns", "number_loss",
)  # fmt: skip


def read_alike(data: Mapping[str, Any], other: BagSpec, note: Note = silent, *, read_all: bool = False) -> Cohort:
    """Other bags, read as those of a run were (same columns, same order of features and classes) but for what is given.

    All of the report is said for labelled bags; of others only what did not match and warnings. read_all: read every
    file once, and leave out those with NaN features.
    """
    kept = {name: value for name, value in data.get("cohort", {}).items() if name in _ALIKE}
    alone = other.labels is None  # then nothing but the files or a slide table says whose a slide is
    trained_so = alone and kept.pop("per_patient", False)
    classes = (data.get("classes") or None) if other.labels is not None else None
    if classes and other.classes is not None:
        raise InputError(
            f"--classes was given, but the run numbers its classes itself ({', '.join(classes)}): leave it out"
        )
    if other.bags is not None:
        other = with_scale_of(data, other.bags, other)
    spec = replace(BagSpec.from_record(kept), **other.given())
    spec, asked = (replace(spec, per_patient=False), spec.per_patient) if alone else (spec, False)
    known = task_from(data["task"]) if data.get("task") else None
    cohort = spec.load(
        categories=data.get("cohort", {}).get("categories"), classes=classes, read_all=read_all, task=known
    )
    check_scale(data, cohort.report.sizes)
    if asked:
        cohort = cohort.by_patient(labelled=False)
    elif trained_so:
        cohort = _joined(cohort, note)
    report = cohort.report
    for line in (
        cohort_lines(cohort, "as in the run") if other.labels is not None else report.unmatched + report.warnings
    ):
        note(line)
    return cohort


def with_scale_of(data: Mapping[str, Any], path: Path, given: BagSpec) -> BagSpec:
    """What is given, and for files out of the run's own folder the scale that the run was given."""
    noted = BagSpec.from_record(data.get("cohort", {}))
    names = ("mpp", "tile_um", "scale_table")
    if noted.bags is None or not path.resolve().is_relative_to(noted.bags.resolve()):
        return given
    if any(name in names for name in given.given()):
        return given
    return replace(given, **{name: getattr(noted, name) for name in names})


def _joined(cohort: Cohort, note: Note) -> Cohort:
    """The slides of every patient together, as the run was trained, where it is known whose they are."""
    unknown = [entry.bag_id for entry in cohort.entries if entry.patient_id is None]
    if not unknown:
        note("The slides of a patient are joined, as the run was trained")
        return cohort.by_patient(labelled=False)
    note(
        "Warning: this run was trained on patients with all their slides joined; here each file is predicted alone, "
        f"because nothing says whose {unknown[0]} is: give --slide-table (slide, patient)"
    )
    return cohort


def run_cohort(data: Mapping[str, Any]) -> Cohort:
    """All bags of a run, read again from what it noted about its cohort."""
    origin = origin_from(data)
    assert isinstance(origin, OwnCohort)
    spec = CohortSpec.from_record(origin.spec)
    labels = None
    if isinstance(origin, Camelyon16):
        from dasmil.paper.camelyon16_labels import camelyon16_labels

        assert spec.bags is not None
        assert spec.labels is not None
        labels = camelyon16_labels(spec.bags, spec.labels).rows
    # The classes as the run numbered them: rows that were added to the table since must not renumber them.
    known = task_from(origin.task) if origin.task else None
    return spec.load(labels, categories=origin.spec.get("categories"), classes=origin.classes, task=known)


def built_in_set(protocol: str, split: str) -> tuple[str, str]:
    """Where the bags of a run's set are: validation and test-large are clean bags, whatever it was trained on."""
    if split in ("validation", "test-large"):
        return "clean", {"validation": "val"}.get(split, split)
    return protocol, split


def run_loader(data: Mapping[str, Any], mnist_dir: Path | None) -> Callable[[str, str], Bag]:
    """Reads a bag of the run by split and name; what it needs is opened once, at the first call."""
    origin = origin_from(data)

    @cache
    def members(split: str) -> tuple[Sequence[Bag], dict[str, int]]:
        match origin:
            case OwnCohort():
                cohort = run_cohort(data)
                return cohort, {bag_id: k for k, bag_id in enumerate(cohort.bag_ids)}
            case InMemory():
                raise InputError("this run does not say where its bags are: give them with --bags")
            case BuiltIn(name, protocol):
                bags = built_in_split(name, *built_in_set(protocol, split), mnist_dir)
                return bags, {bag.bag_id: k for k, bag in enumerate(bags)}

    def load(split: str, bag_id: str) -> Bag:
        bags, index = members("" if isinstance(origin, OwnCohort) else split)
        if bag_id not in index:
            raise DataError(f"bag {bag_id!r} is not where the run found it; put its file back")
        return bags[index[bag_id]]

    return load


def labelled_bags(bags: BagSpec, data: Mapping[str, Any], note: Note = silent) -> Cohort:
    """Feature files (or a table of cells) with their label table; read as the run's own, classes numbered alike."""
    if bags.labels is None:
        raise InputError("--bags needs --labels, a CSV with slide and label; to predict without labels: dasmil predict")
    return read_alike(data, bags, note, read_all=True)


def unlabelled_bags(
    bags: BagSpec, data: Mapping[str, Any] | None = None, note: Note = silent, *, read_all: bool = False
) -> Cohort:
    """Feature files, or a table of cells; with what a run notes about its data they are read as its own were."""
    from dasmil.data.tables import is_table

    known = (data or {}).get("cohort", {}).keys() & {"bag_column", "categories"}
    if bags.bags is not None and is_table(bags.bags) and not known:
        whose = "a model file does not say" if data is None else "this run does not say, because it had no such table,"
        raise InputError(
            f"{bags.bags} is a table of cells, and {whose} which of its columns are what: "
            f"give {'the run directory instead' if data is None else 'a folder of feature files'}"
        )
    return read_alike(data or {}, bags, note, read_all=read_all)

"""Rounds of training: the bags of a cohort split by patient, or into folds, with the test set kept locked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dasmil.data.memory import MEMORY_GB
from dasmil.data.splits import TEST_SHARE, VAL_SHARE
from dasmil.errors import DataError, InputError
from dasmil.study.notes import Note, silent
from dasmil.study.scale import noted
from dasmil.study.spec import CohortSpec, cohort_lines

if TYPE_CHECKING:
    from dasmil.data.cohort import Cohort
    from dasmil.data.labels import LabelRow
    from dasmil.tasks import Task
    from dasmil.types import Bag


@dataclass(frozen=True)
class Round:
    """One round of training: its bags, and what the run notes about their origin."""

    train: Sequence[Bag]
    val: Sequence[Bag] | None
    tests: Mapping[str, Sequence[Bag]]
    data: dict[str, Any] = field(default_factory=dict)
    counted: bool = False
    """Whether reading the tests opens a locked test set, which is noted."""


def cohort_rounds(
    spec: CohortSpec,
    *,
    folds: int | None = None,
    split_seed: int = 0,
    open_test: bool = False,
    labels: list[LabelRow] | None = None,
    note: Note = silent,
    memory_gb: float = MEMORY_GB,
) -> list[Round]:
    """Splits from the label table's split column, else by patient (70/15/15): one round; or one for each of k folds.

    open_test: score the test set after training (it is counted); else it stays locked until it is evaluated.
    labels: stand in for the label table. memory_gb: bags in files are kept in memory up to this size.
    """
    from dasmil.data.match import check_trainable

    if spec.labels is None and labels is None:
        raise InputError("no labels: give --labels, a CSV with slide and label (and patient and split if known)")
    cohort = spec.load(labels, read_all=True, memory_gb=memory_gb)
    for line in cohort_lines(cohort, "as given" if spec.positive or spec.classes else ""):
        note(line)
    if cohort.task is None:
        check_trainable(cohort.report)
    asked = {"classes": list(cohort.classes)} if cohort.task is None else {"task": cohort.task.record()}
    record = {
        "bags": str(spec.bags), **asked, "split_seed": split_seed,
        "cohort": {**spec.as_record(), **_categories(cohort)}, "scale": noted(cohort.report.sizes.values()),
        **cohort_words(cohort),
    }  # fmt: skip
    if spec.covariates:  # columns that are missing or contradict each other stop before hours of training
        spec.further(spec.covariates, "--covariates").of(cohort)
    sites = _sites(spec, cohort, note)
    if folds is not None:
        return fold_rounds(cohort, folds, split_seed, record, note, sites)
    parts = assign_splits(cohort, split_seed, sites)
    test = cohort.subset(parts.get("test", []))
    locked = bool(len(test)) and not open_test
    note(_split_text(parts, cohort.splits, locked=locked, by="patient" if sites is None else "site"))
    _warn_of_one_class(cohort, parts, note)
    _check_taught(cohort, parts["train"])
    record["held_out"] = {"test": test.bag_ids}
    record["test_set"] = f"{len(test)} bags, locked" if len(test) else "none"
    counted = open_test and len(test) > 0
    if counted:  # how often it was opened is noted then; the settings of a run do not depend on it
        record["test_set"] = f"{len(test)} bags, opened after training"
    tests = {"test": test} if counted else {}
    return [Round(cohort.subset(parts["train"]), cohort.subset(parts["val"]), tests, record, counted)]


def bag_rounds(
    bags: Sequence[Bag], folds: int, split_seed: int = 0, note: Note = silent, task: Task | str | None = None
) -> list[Round]:
    """Folds by patient of labelled bags in memory; task: what is asked of them, where it is no class."""
    from dasmil.data.cohort import Cohort, load_cohort
    from dasmil.tasks import resolve_task
    from dasmil.types import need_bag, need_sequence

    need_sequence(bags)
    if not isinstance(bags, Cohort):
        bags = [need_bag(bag, index) for index, bag in enumerate(bags)]
    asked = resolve_task(task, bags)
    if asked.labels is None and not isinstance(bags, Cohort):
        values = np.array([asked.values_of(bag) for bag in bags])
        strata = asked.strata(values).tolist()
        bags = load_cohort([replace(bag, label=k) for bag, k in zip(bags, strata, strict=True)], task=asked)
    cohort = bags if isinstance(bags, Cohort) else load_cohort(bags)
    if None in cohort.labels:
        missing = cohort.bag_ids[cohort.labels.index(None)]
        raise InputError(f"bag {missing!r} has no label: cross-validation needs one for every bag")
    return fold_rounds(cohort, folds, split_seed, {"split_seed": split_seed, **cohort_words(cohort)}, note)


def fold_rounds(
    cohort: Cohort,
    folds: int,
    seed: int,
    record: dict[str, Any],
    note: Note = silent,
    sites: Sequence[str] | None = None,
) -> list[Round]:
    """One round per fold, by patient and stratified by class; test bags of the label table stay apart from all.

    sites: of every bag, where these and not patients stay together.
    """
    from dasmil.data.splits import make_folds

    locked = cohort.splits.get("test", [])
    used = [i for i in range(len(cohort)) if i not in set(locked)]
    part = cohort.subset(used)
    record["held_out"] = {"test": [cohort.bag_ids[i] for i in locked]}
    record["test_set"] = f"{len(locked)} bags besides the folds, locked" if locked else "none besides the folds"
    if locked:
        note(f"{len(locked)} test slides stay locked; cross-validation uses the other {len(used)}")
        _warn_of_one_class(cohort, {"test": locked}, note)
    record["folds"] = folds
    owners, what = (part.patients, "patient") if sites is None else ([sites[i] for i in used], "site")
    made = make_folds(owners, part.labels, folds, seed, what=what, classes=None if part.task else part.classes)
    sizes = {name: sorted(len(getattr(f, name)) for f in made) for name in ("train", "val", "test")}
    train, val, test = (f"{n[0]}" if n[0] == n[-1] else f"{n[0]} to {n[-1]}" for n in sizes.values())
    note(f"{folds} folds by {what}: each trains on {train} bags, validates on {val} of the rest and tests {test}")
    for fold in made:
        _check_taught(part, fold.train)
    return [
        Round(part.subset(f.train), part.subset(f.val), {"test": part.subset(f.test)}, {**record, "fold": number})
        for number, f in enumerate(made)
    ]


def assign_splits(cohort: Cohort, seed: int, sites: Sequence[str] | None = None) -> dict[str, list[int]]:
    """Bag numbers of train, val and test; what the table leaves open is drawn by patient (or site), stratified."""
    from dasmil.data.splits import split_patients

    parts = cohort.splits
    owners, what = (cohort.patients, "patient") if sites is None else (sites, "site")
    if not parts:
        shares = {"train": 1 - VAL_SHARE - TEST_SHARE, "val": VAL_SHARE, "test": TEST_SHARE}
        return split_patients(owners, cohort.labels, shares, seed, what=what)
    if "train" not in parts:
        raise InputError(f"the split column has {', '.join(parts)} but no slide for train")
    if "val" not in parts:
        train = parts["train"]
        drawn = split_patients(
            [owners[i] for i in train],
            [cohort.labels[i] for i in train],
            {"train": 1 - VAL_SHARE, "val": VAL_SHARE},
            seed,
            what=what,
        )
        parts = {**parts, **{name: [train[i] for i in members] for name, members in drawn.items()}}
    return parts


def _sites(spec: CohortSpec, cohort: Cohort, note: Note) -> list[str] | None:
    """The site of every bag where splits keep sites together; None where they go by patient."""
    if spec.site_column is None:
        return None
    from dasmil.data.columns import complete_column
    from dasmil.data.sites import check_site_splits, site_groups

    known = spec.further([spec.site_column], "--site-column")
    groups = site_groups(cohort.patients, complete_column(known, cohort, spec.site_column, "--site-column"))
    check_site_splits(cohort.splits, groups)
    note(f"{len(set(groups))} sites in the column {spec.site_column}: each stays on one side of every split")
    return groups


def cohort_words(cohort: Cohort) -> dict[str, str]:
    """What the report says about the cohort: who is in it, what did not match, how positions were read."""
    lines = cohort.report.lines()
    found = {"slides": lines[0]}
    if unmatched := [line for line in lines[1:] if line not in cohort.report.left_out]:
        found["unmatched"] = "; ".join(unmatched)
    if cohort.report.unreadable:
        found["left_out"] = "; ".join(f"{name}: {why}" for name, why in cohort.report.unreadable.items())
    return found | {"positions": cohort.positions}


def _split_text(
    parts: Mapping[str, Sequence[int]], table: Mapping[str, Sequence[int]], *, locked: bool, by: str
) -> str:
    text = ", ".join(f"{name} {len(members)}" for name, members in parts.items())
    note = "; the test set stays locked until `dasmil evaluate`" if locked else ""
    drawn = "" if "val" in table else f", val drawn from train by {by}"
    how = f"Split as the table says{drawn}" if table else f"Split by {by}"
    return f"{how}: {text}{note}"


def _warn_of_one_class(cohort: Cohort, parts: Mapping[str, Sequence[int]], note: Note) -> None:
    from dasmil.data.match import one_class_parts

    if cohort.task is not None:
        return
    labels = cohort.labels
    for line in one_class_parts({name: [labels[i] for i in part] for name, part in parts.items()}, cohort.classes):
        note(f"Warning: {line}")


def _check_taught(cohort: Cohort, train: Sequence[int]) -> None:
    """Refuse a split that leaves a class without a training bag, by the name that the table gives it."""
    if cohort.task is not None or not cohort.classes:
        return
    taught = {cohort.labels[i] for i in train}
    for k, name in enumerate(cohort.classes):
        if k not in taught:
            owners = {cohort.patients[i] for i, label in enumerate(cohort.labels) if label == k}
            raise DataError(
                f"class {name!r} ({len(owners)} of {len(set(cohort.patients))} patients) has no slide to train on: it "
                "needs 3 patients at least, one each for training, validation and test. Write it like another class "
                "if it is the same, or remove its rows"
            )


def _categories(cohort: Cohort) -> dict[str, Any]:
    """The feature names of a table of cells in their order, which prediction must keep."""
    if not len(cohort) or cohort.entries[0].paths:
        return {}
    names = cohort[0].metadata.get("feature_names")
    return {} if names is None else {"categories": list(names)}

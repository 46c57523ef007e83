"""A cohort as a study of space sees it: the type of every instance, sections with positions, an outcome a patient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dasmil.candidates.types_of_instances import find_types, type_of
from dasmil.candidates.whitening import Sample
from dasmil.errors import DataError, InputError, named
from dasmil.space.outcome import Kind, Outcome, outcome_of_patients
from dasmil.space.sections import Kinds, Section, patients_of
from dasmil.study.notes import Note
from dasmil.study.spec import CohortSpec, cohort_lines
from dasmil.tasks import ClassTarget, Task, TimeTarget
from dasmil.tasks.task import resolve_task
from dasmil.types import Bag, need_bags

TYPES, MOST_TYPES = 8, 60
FEWEST_INSTANCES = 20
"""Instances without which a section is left out; types with fewer in the whole cohort are called rare."""
COMBINATIONS = 20
"""Different rows of 0 and 1 that are taken for categories."""


@dataclass(frozen=True, eq=False)
class SpaceCohort:
    """types: names; kinds: of every instance of every bag; sections with the bag and rows of each (places).

    outcome: None where it cannot be tested; notes: why, and what was left out.
    """

    bags: Sequence[Bag]
    types: tuple[str, ...]
    kinds: Sequence[Kinds]
    sections: Sequence[Section]
    places: Sequence[tuple[int, Kinds]]
    unit: str
    outcome: Outcome | None
    notes: Sequence[str]


def read_cohort(
    data: CohortSpec | Sequence[Bag], task: Task | str | None, types: int | None, seed: int, note: Note
) -> SpaceCohort:
    """Read all bags once and find types, sections and the outcome."""
    bags, asked, classes = _loaded(data, task, note)
    notes: list[str] = []
    names, kinds = _typed(bags, types, seed, note)
    sections, places = _sections(bags, kinds, notes)
    counts = np.sum([np.bincount(section.kinds, minlength=len(names)) for section in sections], axis=0)
    rare = [f"{name} ({count})" for name, count in zip(names, counts, strict=True) if count < FEWEST_INSTANCES]
    if rare:
        notes.append(f"Types with a handful of instances count in composition, but have no contacts: {named(rare)}")
    if len(sections) == 1:
        notes.append("there is one section only: an outcome needs several patients; the section itself is described")
        outcome = None
    else:
        outcome = _outcome(bags, asked, classes, sections, notes)
    for text in notes:
        note(text)
    return SpaceCohort(bags, names, kinds, sections, places, bags[0].unit, outcome, notes)


def _loaded(
    data: CohortSpec | Sequence[Bag], task: Task | str | None, note: Note
) -> tuple[list[Bag], Task, Sequence[str]]:
    """All bags, read once, what is asked of them, and the names of classes."""
    classes: Sequence[str] = ()
    if isinstance(data, CohortSpec):
        cohort = data.load()
        for text in cohort_lines(cohort):
            note(text)
        found, classes = resolve_task(task, cohort), cohort.classes
        bags = [replace(bag, patient_id=patient) for bag, patient in zip(cohort, cohort.patients, strict=True)]
    else:
        need_bags(data)
        bags, found = list(data), resolve_task(task, data)
    if any(bag.features.ndim != 2 for bag in bags):
        raise DataError("the bags hold pictures, expected vectors of features: extract features first")
    if len({bag.features.shape[1] for bag in bags}) > 1:
        raise DataError("bags have different numbers of features: they come from several encoders")
    if len({bag.unit for bag in bags}) > 1:
        raise DataError("some bags are in um and others in px: give all of them in um")
    for bag in bags:
        bag.need_finite_features()
    return bags, found, classes


def _typed(bags: Sequence[Bag], count: int | None, seed: int, note: Note) -> tuple[tuple[str, ...], list[Kinds]]:
    """Names of the types, and the type of every instance of every bag.

    The user's categories where the bags have them (a table with a column of types, or features of 0 and 1 in few
    combinations), else types by k-means on whitened features.
    """
    first = bags[0].metadata
    features = [str(name) for name in first.get("feature_names", [])]
    if count is None and features and first.get("instance_label_names") == first.get("feature_names"):
        labels = [bag.instance_labels.numpy() for bag in bags if bag.instance_labels is not None]
        if len(labels) == len(bags):
            return _used(features, labels)
    if count is None and (found := _combinations(bags, features)) is not None:
        return found
    sample = Sample()
    for bag in bags:
        sample.add(bag)
    directions = sample.directions()
    if not directions.within:
        raise DataError(
            "the instances of a bag have the same features (or a bag has one instance only), so there are no types "
            "whose positions could be compared: dasmil train can learn from them"
        )
    whitened = [replace(bag, features=directions.read(bag.features)) for bag in bags]
    centres = find_types(whitened, count or TYPES, directions.within, seed)
    kinds = [type_of(bag.features.numpy(), centres) for bag in whitened]
    names, kinds = _used(_described(bags, kinds, len(centres), features), kinds)
    note(f"{len(names)} types of instances found by k-means: {named(names, 400)}")
    return names, kinds


def _used(names: Sequence[str], kinds: Sequence[Kinds]) -> tuple[tuple[str, ...], list[Kinds]]:
    """Without categories that no instance has."""
    used = np.unique(np.concatenate(kinds))
    if len(used) < 2:
        raise DataError(
            f"all instances are of one type ({names[used[0]]}): a study of space compares pairs of types, expected two "
            "or more"
        )
    if len(used) > MOST_TYPES:
        raise DataError(f"there are {len(used)} types, expected at most {MOST_TYPES}: join rare ones in your table")
    return tuple(str(names[k]) for k in used), [np.searchsorted(used, own).astype(np.int64) for own in kinds]


def _combinations(bags: Sequence[Bag], names: Sequence[str]) -> tuple[tuple[str, ...], list[Kinds]] | None:
    """Marks of 0 and 1: every combination that occurs is a type, if there are few."""
    if not names or any(not bool(((bag.features == 0) | (bag.features == 1)).all()) for bag in bags):
        return None
    rows = np.concatenate([bag.features.numpy() for bag in bags]).astype(np.int8)
    patterns, kinds = np.unique(rows, axis=0, return_inverse=True)
    if len(patterns) > COMBINATIONS:
        return None
    called = ["+".join(name for name, mark in zip(names, row, strict=True) if mark) or "none" for row in patterns]
    ends = np.cumsum([len(bag) for bag in bags])[:-1]
    return _used(called, np.split(kinds.reshape(-1), ends))


def _described(bags: Sequence[Bag], kinds: Sequence[Kinds], count: int, features: Sequence[str]) -> tuple[str, ...]:
    """`type 3 (CD8, CD3)`: the features in which a type lies highest, where they have names."""
    if not features:
        return tuple(f"type {k + 1}" for k in range(count))
    x, own = np.concatenate([bag.features.numpy() for bag in bags]), np.concatenate(kinds)
    spread = x.std(0)
    z = (x - x.mean(0)) / np.where(spread > 0, spread, 1)
    names = []
    for k in range(count):
        mean = z[own == k].mean(0) if (own == k).any() else np.zeros(x.shape[1])
        high = [features[int(i)] for i in np.argsort(-mean)[:2] if mean[i] > 0.5]
        names.append(f"type {k + 1} ({', '.join(high) or 'low in all'})")
    return tuple(names)


def _sections(
    bags: Sequence[Bag], kinds: Sequence[Kinds], notes: list[str]
) -> tuple[list[Section], list[tuple[int, Kinds]]]:
    """Every section of every bag that has positions, with its bag and rows; what is left out is noted."""
    found, places, small, nowhere = [], [], [], []
    for number, bag in enumerate(bags):
        numbers = np.zeros(len(bag), np.int64) if bag.section is None else bag.section.numpy()
        coords, own = bag.coords.double().numpy(), kinds[number]
        known = np.unique(numbers)
        for k in known:
            rows = np.flatnonzero(numbers == k)
            name = bag.bag_id if len(known) == 1 else f"{bag.bag_id}, section {k}"
            if len(rows) < FEWEST_INSTANCES:
                small.append(name)
            elif not np.ptp(coords[rows], axis=0).any():
                nowhere.append(name)
            else:
                found.append(Section(name, bag.patient_id or bag.bag_id, coords[rows], own[rows]))
                places.append((number, rows))
    reasons = {
        "have no positions (all instances at one place)": nowhere,
        f"have fewer than {FEWEST_INSTANCES} instances": small,
    }
    for reason, names in reasons.items():
        if names:
            notes.append(f"Sections that {reason} are left out: {len(names)} ({named(names, 100)})")
    if not found:
        raise DataError(
            f"no section has {FEWEST_INSTANCES} or more instances with positions, so contacts cannot be counted; "
            "composition alone can be compared, for example with dasmil train --model mean-mlp"
        )
    return found, places


def _outcome(
    bags: Sequence[Bag], task: Task, classes: Sequence[str], sections: Sequence[Section], notes: list[str]
) -> Outcome | None:
    """The outcome of every patient that has sections; None, with the reason, where it cannot be tested."""
    kind, rows, classes, name = _values(bags, task, classes)
    if not np.isfinite(rows).any():
        notes.append("the bags have no label, so sections are described, each against its types dealt out at random")
        return None
    patients = patients_of(sections)
    owners = [bag.patient_id or bag.bag_id for bag in bags]
    own = [k for k, owner in enumerate(owners) if owner in set(patients)]
    lacking = {owners[k] for k in own if not np.isfinite(rows[k]).all()}
    if lacking:
        raise DataError(
            f"{len(lacking)} patients have no outcome, the first is {min(lacking)!r}: give each one, or leave out "
            "their bags"
        )
    outcome = outcome_of_patients(kind, rows[own], [owners[k] for k in own], patients, tuple(classes), name)
    if reason := outcome.too_few():
        notes.append(f"{reason}; sections are described, each against its types dealt out at random")
        return None
    return outcome


def _values(bags: Sequence[Bag], task: Task, classes: Sequence[str]) -> tuple[Kind, np.ndarray, Sequence[str], str]:
    """The kind of outcome, its values [bags, columns] (NaN where missing), names of classes, and its own name."""
    if task.labels is not None:
        rows = np.array([[np.nan if bag.label is None else float(bag.label)] for bag in bags])
        count = int(np.nanmax(rows, initial=1)) + 1
        return "classes", rows, classes or [str(k) for k in range(count)], "class"
    if len(task.targets) != 1:
        raise InputError(f"the task has {len(task.targets)} targets, expected one: name one of them")
    target = task.targets[0]
    rows = np.array(
        [[np.nan if (v := bag.targets.get(c)) is None else float(v) for c in target.columns] for bag in bags]
    )
    if isinstance(target, ClassTarget):
        return "classes", rows, target.classes, target.name
    if isinstance(target, TimeTarget):
        return "survival", rows, (), "survival"
    return "number", rows, (), target.name

"""A cohort: labelled bags that are read when they are asked for, and a report of everything that did not match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, overload

from dasmil.data.checks import Finding, check_copies, check_mixture, check_patients, check_repeats, grouped, look_at_bag
from dasmil.data.combine import join_sections, sample_instances
from dasmil.data.complete import examined, lacking_slides
from dasmil.data.doctor_tasks import disagreeing
from dasmil.data.formats import FeatureFile, find_feature_files, left_out_text, slide_name
from dasmil.data.labels import LabelRow, plain_slide
from dasmil.data.leaks import leaking_columns
from dasmil.data.match import (
    Candidate,
    CohortReport,
    Match,
    candidate,
    match_labels,
    without_unreadable,
)
from dasmil.data.memory import MEMORY_GB
from dasmil.data.restrict import NothingLeftError, Restriction
from dasmil.data.scale import Scales
from dasmil.data.source import BagSource
from dasmil.errors import DataError, InputError
from dasmil.tasks import Task
from dasmil.types import Bag


@dataclass(frozen=True)
class Entry:
    """One bag of a cohort before it is read: a slide, or all slides of a patient (one section each)."""

    bag_id: str
    label: int | None
    patient_id: str | None
    split: str | None
    sources: tuple[Callable[[], Bag], ...]
    paths: tuple[Path, ...] = ()
    targets: tuple[tuple[str, float | None], ...] | None = None
    """Values of a task other than one class; ``label`` is then what splits are balanced by."""


class Cohort(Sequence[Bag]):
    """Labelled bags in a fixed order; slices and ``subset`` read nothing, and share one ``source`` of bags in files."""

    def __init__(
        self,
        entries: Sequence[Entry],
        classes: tuple[str, ...],
        report: CohortReport,
        *,
        source: BagSource | None = None,
        max_instances: int | None = None,
        seed: int = 0,
        joined: bool = False,
        task: Task | None = None,
    ) -> None:
        if max_instances is not None and max_instances < 1:
            raise InputError(f"max_instances is {max_instances}, expected a positive number or none at all")
        self.entries = tuple(entries)
        self.classes = classes
        self.report = report
        self.source = source or BagSource()
        self.max_instances = max_instances
        self.seed = seed
        self.joined = joined  # every bag is a patient with all slides
        self.task = task  # what is asked of the bags, where it is no class

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, index: int) -> Bag: ...
    @overload
    def __getitem__(self, index: slice) -> Cohort: ...
    def __getitem__(self, index: int | slice) -> Bag | Cohort:
        if isinstance(index, slice):
            return self.subset(range(len(self))[index])
        return self._read(self.entries[index])

    def subset(self, indices: Iterable[int]) -> Cohort:
        """The bags with these numbers, as a cohort."""
        return self.with_entries([self.entries[i] for i in indices])

    def with_entries(self, entries: Sequence[Entry], *, joined: bool | None = None) -> Cohort:
        """Other bags of the same cohort; joined: whether each is a patient with all slides (as before)."""
        return Cohort(
            entries,
            self.classes,
            self.report,
            source=self.source,
            max_instances=self.max_instances,
            seed=self.seed,
            joined=self.joined if joined is None else joined,
            task=self.task,
        )

    def by_patient(self, *, labelled: bool = True) -> Cohort:
        """One bag per patient: its slides become sections. labelled: False, if labels that differ do not matter."""
        groups: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if entry.patient_id is None:
                raise DataError(
                    f"slide {entry.bag_id!r} has no patient, so it cannot be joined with others of its patient; "
                    "add a patient column to the label table, or without labels give --slide-table (slide, patient)"
                )
            groups.setdefault(entry.patient_id, []).append(entry)
        joined: list[Entry] = []
        for patient, slides in groups.items():
            if labelled and len({(slide.label, slide.targets) for slide in slides}) > 1:
                names = ", ".join(f"{slide.bag_id}: {self._told(slide)}" for slide in slides)
                raise DataError(
                    f"patient {patient!r} has slides with different labels ({names}): give the patient one label"
                )
            sources = tuple(source for slide in slides for source in slide.sources)
            paths = tuple(path for slide in slides for path in slide.paths)
            joined.append(replace(slides[0], bag_id=patient, patient_id=patient, sources=sources, paths=paths))
        return self.with_entries(joined, joined=True)

    def _told(self, slide: Entry) -> str:
        """The label of a slide in words."""
        if slide.targets is not None:
            return " ".join(f"{name} {'none' if v is None else f'{v:g}'}" for name, v in slide.targets)
        return "none" if slide.label is None else self.classes[slide.label]

    @property
    def labels(self) -> list[int | None]:
        """Class numbers (with a task, what splits are balanced by), without reading any features."""
        return [entry.label for entry in self.entries]

    @property
    def bag_ids(self) -> list[str]:
        return [entry.bag_id for entry in self.entries]

    @property
    def patients(self) -> list[str]:
        """The patient of every bag; a bag without one is its own patient."""
        return [entry.patient_id if entry.patient_id is not None else entry.bag_id for entry in self.entries]

    @property
    def splits(self) -> dict[str, list[int]]:
        """Bag numbers per split that the label table assigns; empty if it has no split column."""
        found: dict[str, list[int]] = {}
        for i, entry in enumerate(self.entries):
            if entry.split is not None:
                found.setdefault(entry.split, []).append(i)
        return found

    @cached_property
    def positions(self) -> str:
        """How positions were found: the rule of each kind of file, and how many scales its slides have."""
        kinds: dict[str, list[FeatureFile]] = {}
        stored: dict[str, None] = {}  # of bags in memory
        for entry in self.entries:
            for path in entry.paths:
                file = self.source.brief(path)
                kinds.setdefault(file.probe.format, []).append(file)
            if not entry.paths:
                stored |= {str(read().metadata.get("coords_rule", "stored")): None for read in entry.sources}
        return "; ".join([*map(_placing, kinds.values()), *stored])

    def _read(self, entry: Entry) -> Bag:
        if entry.paths and (len(entry.sources) > 1 or self.max_instances is not None):
            bag = self.source.made(
                (entry.paths, entry.bag_id, self.max_instances, self.seed), entry.paths, lambda: self._made(entry)
            )
        else:
            bag = self._made(entry)
        label = entry.label if self.task is None else None
        targets = bag.targets if entry.targets is None else dict(entry.targets)
        return replace(bag, bag_id=entry.bag_id, label=label, patient_id=entry.patient_id, targets=targets)

    def _made(self, entry: Entry) -> Bag:
        """The slides of an entry as one bag, or a part of it, where the cohort has a limit."""
        bags = [read() for read in entry.sources]
        bag = bags[0] if len(bags) == 1 else join_sections(entry.bag_id, bags)
        if self.max_instances is not None and len(bag) > self.max_instances:
            bag = sample_instances(replace(bag, bag_id=entry.bag_id), self.max_instances, self.seed)
        return bag


def load_cohort(
    bags: str | Path | Sequence[Bag],
    labels: Sequence[LabelRow] | None = None,
    *,
    scales: Scales | None = None,
    classes: Sequence[str] | None = None,
    positive: str | None = None,
    patients: Mapping[str, str] | None = None,
    per_patient: bool = False,
    max_instances: int | None = None,
    seed: int = 0,
    strict: bool = False,
    read_all: bool = False,
    task: Task | None = None,
    memory_gb: float = MEMORY_GB,
    restriction: Restriction | None = None,
) -> Cohort:
    """Join a folder of feature files (any known format), or bags in memory, with a label table.

    labels None: for prediction; class numbers that bags carry themselves are kept. A patient that the table leaves open
    is that of the bag, a value that contradicts the table's gives way and is reported. classes: their names in order;
    positive: of two, the one that is class 1 (default: by the usual words). patients: of slides by ``plain_slide``,
    where there is no label table.
    A slide whose file is damaged, empty or without positions is left out, and the report says so; with ``read_all``
    (every file is read, and its bag kept up to ``memory_gb``) also one with NaN or infinite features, and the report
    has the findings of the doctor.
    restriction: regions of slides inside (or outside) of which instances are used; a slide without any instance left is
    left out.
    task: what is asked of the bags, where it is no class; the rows of ``labels`` then have its values.
    strict: slides without a label, labels without a slide and slides left out are errors instead of lines there.
    """
    source = BagSource(scales, memory_gb)
    if isinstance(bags, str | Path):
        files = find_feature_files(Path(bags))
        found = [Candidate(slide_name(path), path) for path in files]
        readers: dict[str, Callable[[], Bag]] = {slide_name(path): partial(source.bag, path) for path in files}
    else:
        found = [Candidate(bag.bag_id, label=bag.label, patient=bag.patient_id) for bag in bags]
        readers = {bag.bag_id: _memory_source(bag) for bag in bags}
    if restriction is not None:
        readers = {name: _restricted(reader, restriction) for name, reader in readers.items()}
    owned = lambda found: [  # noqa: E731
        replace(bag, patient=(patients or {}).get(plain_slide(bag.name), bag.patient)) for bag in found
    ]
    matched = match_labels(owned(found), labels, classes, positive)  # a table that is wrong stops before files are read
    files_of = examined(matched.slides, source, features=read_all)
    seen, unreadable = files_of.seen, files_of.unreadable
    if seen or unreadable:
        probes = {name: file.probe for name, file in seen.items()}
        carried = {name: candidate(path, probes.get(name)) for name, path in _paths(matched).items()}
        found = [carried.get(bag.name, bag) for bag in found]
        matched = match_labels(owned(found), labels, classes, positive)
    grid = files_of.grid
    if restriction is not None:
        grid = [*grid, *restriction.lines([slide.name for slide in matched.slides])]
        unreadable = {**unreadable, **_without_instances(matched, readers, restriction, unreadable)}
    incomplete = lacking_slides(matched.slides, unreadable, patients, labels if per_patient else None)
    matched = without_unreadable(matched, unreadable)
    report = replace(
        matched.report,
        scales_without_slide=source.scales.without_slide(bag.name for bag in found),
        incomplete=incomplete,
        sizes={name: (file.tile_um, file.mpp) for name, file in seen.items()},
        grid=grid,
    )
    if read_all:
        owners = {slide.name: slide.patient for slide in matched.slides}
        here = [] if isinstance(bags, str | Path) else [bag for bag in bags if bag.bag_id in owners]
        looks = [source.looks[path] for slide in matched.slides if (path := slide.path) in source.looks]
        looked: dict[str, dict[str, Any]] = {row["slide"]: dict(row) for row, _ in looks}
        looked |= {bag.bag_id: look_at_bag(bag) for bag in here}
        for name, row in looked.items():
            row["patient"] = owners[name]
        findings = grouped([one for _, found_there in looks for one in found_there])
        findings += check_mixture(list(looked.values()))
        findings += check_copies(looked.values(), owners) + check_patients(owners.values())
        findings += check_repeats(looked.values())
        classes_of = {slide.name: slide.label for slide in matched.slides}
        findings += leaking_columns(here, [classes_of[bag.bag_id] for bag in here])
        if task is not None:
            findings += [Finding(*one) for one in disagreeing(matched, task, per_patient)]
        report = replace(report, looked=looked, findings=findings)
    if strict and report.unmatched:
        raise DataError(f"refused because of --strict: {'; '.join(report.unmatched)}; leave --strict out to go on")
    cohort = Cohort(
        _entries(matched, readers), matched.classes, report, source=source, max_instances=max_instances, seed=seed,
        task=task,
    )  # fmt: skip
    return cohort.by_patient() if per_patient else cohort


def bag_sizes(cohort: Cohort) -> tuple[list[int], tuple[int, ...]]:
    """Instances per bag (after ``max_instances``) and the shape of one, without reading features of files."""
    sizes: list[int] = []
    shapes: set[tuple[int, ...]] = set()
    for i, entry in enumerate(cohort.entries):
        if entry.paths:
            files = [cohort.source.brief(path) for path in entry.paths]
            n = sum(file.probe.n - file.left_out for file in files)
            shapes |= {file.probe.picture_shape or (file.probe.in_features,) for file in files}
        else:
            n = len(cohort[i])
            shapes.add(tuple(cohort[i].features.shape[1:]))
        sizes.append(min(n, cohort.max_instances or n))
    if len(shapes) != 1:
        found = ", ".join(" x ".join(map(str, shape)) for shape in sorted(shapes))
        raise DataError(f"bags have different numbers of features ({found}): they come from several encoders")
    return sizes, shapes.pop()


def _placing(files: Sequence[FeatureFile]) -> str:
    """The rule of slides of one kind; that of the first where they differ, with the range of their scales."""
    rules = {file.placed for file in files}
    text = files[0].placed
    if len(rules) > 1:
        scales = sorted({float(f"{file.mpp:g}") for file in files if file.mpp is not None})
        if len(scales) > 1:
            what = f"{len(scales)} different scales, {scales[0]:g} to {scales[-1]:g} um/px"
        else:
            what = f"{len(rules)} different {'tile sizes' if scales else 'scales or tile sizes'}"
        text += f" in the first of {len(files)} slides, which have {what}"
    return text + left_out_text(sum(file.left_out for file in files))


def _paths(matched: Match) -> dict[str, Path]:
    return {slide.name: slide.path for slide in matched.slides if slide.path is not None}


def _restricted(read: Callable[[], Bag], restriction: Restriction) -> Callable[[], Bag]:
    return lambda: restriction.of(read())


def _without_instances(
    matched: Match, readers: Mapping[str, Callable[[], Bag]], restriction: Restriction, unreadable: Mapping[str, str]
) -> dict[str, str]:
    """The slides of which no instance lies in the chosen regions, with the reason."""
    found = {}
    for slide in matched.slides:
        if slide.name not in unreadable and restriction.touches(slide.name):
            try:
                readers[slide.name]()
            except NothingLeftError as error:
                found[slide.name] = str(error)
    return found


def _memory_source(bag: Bag) -> Callable[[], Bag]:
    return lambda: bag


def _entries(matched: Match, readers: dict[str, Callable[[], Bag]]) -> list[Entry]:
    return [
        Entry(
            bag_id=slide.name,
            label=slide.label,
            patient_id=slide.patient,
            split=slide.split,
            sources=(readers[slide.name],),
            paths=() if slide.path is None else (slide.path,),
            targets=slide.targets,
        )
        for slide in matched.slides
    ]

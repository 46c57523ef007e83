"""Questions to a whole run: does space matter, which distances were learned, on which labelled bags is it asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dasmil.attribution import distance
from dasmil.attribution.distance import LearnedDistance
from dasmil.attribution.space_test import SpaceTest, space_test_folds
from dasmil.data.cells import cell_files, is_table
from dasmil.data.formats import find_feature_files
from dasmil.errors import InputError
from dasmil.models.base import MILModel
from dasmil.runs import OwnCohort, Run, origin_from, speakers
from dasmil.study.data import built_in_split
from dasmil.study.held_out import run_sets
from dasmil.study.lookup import models_of, run_origin
from dasmil.study.notes import Note, silent
from dasmil.study.reading import labelled_bags, run_loader
from dasmil.study.spec import BagSpec
from dasmil.types import Bag


@dataclass(frozen=True)
class LabelledBags:
    """Where the labelled bags of a question to a whole run come from: by default those that the run kept apart.

    given: others with their label table. data, protocol, split: a built-in data set, or a set of the run. limit: only
    the first this many bags.
    """

    data: str | None = None
    protocol: str = "clean"
    split: str | None = None
    given: BagSpec = BagSpec()  # noqa: RUF009  (frozen)
    limit: int | None = None
    mnist_dir: Path | None = None
    note: Note = silent

    def parts(self, run: Path) -> list[tuple[list[MILModel], Sequence[Bag]]]:
        """Models and the bags to score them on: one part, or of a cross-validation each fold with what it held out."""
        if not self.own_folds(run):
            return [(models_of(run), self.load(run))]
        found = []
        for fold in Run.read(run).folds:
            first = next(iter(fold.seeds.values()))
            load, split = run_loader(fold.origin, self.mnist_dir), self.split or "test"
            ids = first.predictions(split).bag_ids
            bags = [load(split, bag_id) for bag_id in ids[: self.limit]]
            found.append((fold.models(), bags))
        return found

    def own_folds(self, run: Path) -> bool:
        """Whether the bags are those that the folds of a cross-validation held out."""
        return self.data is None and self.given.bags is None and speakers(run)[0].fold is not None

    def load(self, run: Path) -> Sequence[Bag]:
        known = run_origin(run)
        if self.given.bags is not None:
            bags = labelled_bags(self.given, known, self.note)
        elif self.data is None and isinstance(origin_from(known), OwnCohort):  # the bags that this run kept apart
            sets = run_sets(known, None if self.split is None else [self.split], None, run, self.note)
            parts = list(sets.values())
            bags = parts[0] if len(parts) == 1 else [bag for part in parts for bag in part]
        else:
            name = self.data or known.get("name")
            if name is None:
                raise InputError(
                    f"{run} was not trained on built-in data: give --data NAME, or a bag with --bag or --bags"
                )
            bags = built_in_split(str(name), *self._set(known), self.mnist_dir)
        return bags if self.limit is None else bags[: self.limit]

    def _set(self, known: Mapping[str, Any]) -> tuple[str, str]:
        """Protocol and split of built-in data: the run's own, but the published test bags only when asked for.

        These repeat the layouts of training bags; the clean ones share nothing with either protocol's.
        """
        if self.split is None:
            return ("published", "test") if self.protocol == "published" else ("clean", "test-large")
        return (self.protocol if self.data or "protocol" not in known else str(known["protocol"])), self.split

    def describe(self, run: Path) -> str:
        known = run_origin(run)
        if self.given.bags is not None:
            return str(self.given.bags)
        if self.own_folds(run):
            return f"each fold on its own {self.split or 'test'} bags, mean of the folds"
        if self.data is None and isinstance(origin_from(known), OwnCohort):
            return f"the run's own bags, {self.split or 'all kept apart'}"
        protocol, split = self._set(known)
        return f"{self.data or known.get('name')}, {protocol} protocol, split {split}"

    def state(self, run: Path) -> tuple[object, ...]:
        """What decides the figures beside `describe`: how bags are read, and their files; nothing for built-in data."""
        known = run_origin(run)
        given = self.given
        if given.bags is None and (self.data is not None or "cohort" not in known):
            return ()
        cohort = known.get("cohort", {})
        bags = given.bags or Path(cohort["bags"])
        names = ("labels", "slide_table", "scale_table")
        tables = [getattr(given, n) if given.bags else cohort.get(n) for n in names]
        found = cell_files(bags) if is_table(bags) else find_feature_files(bags)
        files = [file for path in found for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
        files += [Path(t) for t in tables if t]
        stamps = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
        return {name: str(value) for name, value in given.given().items()}, known, stamps


def built_in_bag(run: Path, source: LabelledBags, index: int) -> Bag:
    """One bag of a built-in data set, by default the one that the run was trained on."""
    bags = source.load(run)
    if not 0 <= index < len(bags):
        raise InputError(f"--index is {index}, but the split {source.split!r} has the bags 0 to {len(bags) - 1}")
    return bags[index]


def learned_distances(run: str | Path) -> list[LearnedDistance]:
    """The learned distance of every head over all seeds of a run, as `dasmil explain RUN --distances`.

    Example: ``dasmil.learned_distances("runs/mine")[0].midpoints``
    """
    return distance.learned_distances(models_of(Path(run)))


def space_test(
    run: str | Path, source: LabelledBags | None = None, *, progress: Callable[[str], None] | None = None
) -> SpaceTest:
    """Shuffle, scale, rotate and mirror the coordinates of labelled bags and compare AUROC, over all models of a run.

    Example: ``dasmil.space_test("runs/mine").rows[0].difference``

    source: the bags; by default those that the run kept apart. A locked test set is opened, which is counted; each fold
    of a cross-validation scores what it held out.
    """
    return space_test_folds((source or LabelledBags()).parts(Path(run)), progress=progress)

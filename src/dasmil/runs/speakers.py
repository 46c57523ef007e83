"""Which model of a run speaks for a bag: of a cross-validation the one of the fold that held the bag out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dasmil.errors import InputError
from dasmil.runs import layout
from dasmil.runs.run import Run, Seed, origin_of, seed_of, task_of
from dasmil.runs.schema import OriginRecord
from dasmil.tasks import Task
from dasmil.vocabulary import speaker_text


@dataclass(frozen=True)
class Speaker:
    """One trained model and what bags were to it; fold: its number, of a cross-validation; seed: None for a file."""

    model_file: Path
    seed: Seed | None = None
    fold: int | None = None

    @property
    def title(self) -> str:
        """ "fold 2, seed 0", "seed 0", or the name of the file."""
        if self.seed is None:
            return self.model_file.name
        return f"fold {self.fold}, seed {self.seed.number}" if self.fold is not None else f"seed {self.seed.number}"

    @property
    def origin(self) -> OriginRecord:
        """Where the bags of its run come from; empty for a lone file."""
        return origin_of(self.model_file)

    @cached_property
    def task(self) -> Task | None:
        """What its run asks of bags, where it is no class; None for a lone file."""
        return task_of(self.model_file)

    @property
    def kept(self) -> Path | None:
        """The folder beside the weights for accounts of large bags; None for a lone file."""
        return None if self.seed is None else self.seed.path / layout.ACCOUNTS

    @cached_property
    def sets(self) -> dict[str, str]:
        """The set of every bag that the model has scored."""
        if self.seed is None:
            return {}
        return self.seed.sets

    def describe(self, bag_id: str) -> str:
        """ "fold 2, seed 0; this bag was in its test set"."""
        return speaker_text(self.title, self.sets.get(bag_id))


def speakers(path: Path, seed: int | None = None) -> list[Speaker]:
    """All models of a run (or of a file), by fold and seed; with ``seed`` only those of that seed."""
    if path.is_dir() and (layout.is_begun(path) or layout.fold_folders(path)):
        run = Run.read(path)
        found = [
            Speaker(own.model_file, own, number if run.folds else None)
            for number, part in enumerate(run.parts)
            for own in part.seeds.values()
        ]
        return found if seed is None else of_seed(found, seed, path)
    file = layout.find_model(path, seed)
    return [Speaker(file, seed_of(file))]


def of_seed(found: Sequence[Speaker], seed: int, path: Path) -> list[Speaker]:
    """Those of one seed; path: of their run, for the error where it has no such seed."""
    chosen = [speaker for speaker in found if speaker.seed is not None and speaker.seed.number == seed]
    if not chosen:
        known = sorted({speaker.seed.number for speaker in found if speaker.seed is not None})
        raise InputError(f"{path} has no seed {seed}: it has {', '.join(map(str, known)) or 'none'}")
    return chosen


def speaker_for(found: list[Speaker], bag_id: str) -> Speaker:
    """The first model that did not see the bag: it was in its test set, else in none or in another than train."""
    ranks = {"train": 3, "val": 2}
    return min(found, key=lambda s: 0 if (used := s.sets.get(bag_id, "")).startswith("test") else ranks.get(used, 1))

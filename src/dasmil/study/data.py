"""All that says what a study trains on: a built-in data set, a cohort of one's own, or CAMELYON16; and its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasmil.data.memory import MEMORY_GB
from dasmil.errors import InputError, unknown_name
from dasmil.runs.origin import CAMELYON16
from dasmil.study.notes import Note, silent
from dasmil.study.rounds import Round, cohort_rounds, cohort_words
from dasmil.study.scale import noted
from dasmil.study.spec import CohortSpec, cohort_lines

if TYPE_CHECKING:
    from dasmil.types import Bag

_PATHS = ("mnist_dir", "features", "reference")


@dataclass(frozen=True, kw_only=True)
class StudyData:
    """One source of bags and how it is split; workers find the same bags with its record.

    data, protocol, mnist_dir: a built-in data set. cohort, folds, split_seed, open_test: one's own bags. features,
    reference: CAMELYON16, with the recipe of that name. memory_gb: bags in files are kept in memory up to this size.
    """

    data: str | None = None
    protocol: str = "clean"
    mnist_dir: Path | None = None
    cohort: CohortSpec = field(default_factory=lambda: CohortSpec())
    folds: int | None = None
    split_seed: int = 0
    open_test: bool = False
    recipe: str | None = None
    features: Path | None = None
    reference: Path | None = None
    memory_gb: float = MEMORY_GB

    def __post_init__(self) -> None:
        from dasmil.data import list_datasets
        from dasmil.data.splits import check_split_seed

        check_split_seed(self.split_seed)
        sources = (("--data", self.data), ("--bags", self.cohort.bags), ("--features", self.features))
        named = [flag for flag, value in sources if value]
        if len(named) > 1:
            raise InputError(f"{' and '.join(named)} were given: choose one source of bags")
        if self.data is not None:
            if self.folds is not None or self.open_test:
                raise InputError("--folds and --test are for one's own bags; built-in data has fixed splits")
            if self.data not in list_datasets():
                raise unknown_name("data set", self.data, list_datasets())
        elif self.folds is not None and self.open_test:
            raise InputError(
                "--test was given with --folds, whose parts are tested already: leave --test out, and open test slides "
                "that the label table keeps apart with `dasmil evaluate`"
            )
        elif self.features is not None and (self.recipe != "camelyon16" or self.reference is None):
            raise InputError(
                "--features is for CAMELYON16: also give --recipe camelyon16 and --reference reference.csv"
            )
        if not named:
            raise InputError("nothing to train on: give --data mnist-collage, or --bags FOLDER --labels labels.csv")

    @property
    def preset(self) -> str | None:
        """The sizes of a model that fit this data."""
        return "mnist-collage" if self.data is not None else "camelyon16" if self.features is not None else None

    def rounds(self, note: Note = silent) -> list[Round]:
        """The bags, found and split: one round, or one per fold."""
        if self.data is not None:
            return self._built_in(self.data)
        if self.features is not None and self.reference is not None:
            return self._camelyon16(self.features, self.reference, note)
        return cohort_rounds(
            self.cohort, folds=self.folds, split_seed=self.split_seed, open_test=self.open_test, note=note,
            memory_gb=self.memory_gb,
        )  # fmt: skip

    def as_record(self) -> dict[str, Any]:
        """Plain values, from which ``from_record`` makes it again in another process."""
        plain = lambda values: {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}  # noqa: E731
        return {**plain(vars(self)), "cohort": plain(vars(self.cohort))}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> StudyData:
        """The same source of bags."""
        paths = {name: Path(record[name]) for name in _PATHS if record[name] is not None}
        return cls(**{**record, **paths, "cohort": CohortSpec.from_record(record["cohort"])})

    def _built_in(self, name: str) -> list[Round]:
        load = lambda split: built_in_split(name, self.protocol, split, self.mnist_dir)  # noqa: E731
        clean = self.protocol == "clean"
        held_out = ["test", "test-large"] if clean else ["test"]
        origin = {"name": name, "protocol": self.protocol}
        return [
            Round(load("train"), load("val") if clean else None, {split: load(split) for split in held_out}, origin)
        ]

    def _camelyon16(self, features: Path, reference: Path, note: Note) -> list[Round]:
        """Training slides by name, test slides by the challenge's table; counts are checked and said.

        As in the paper there is no validation set: the last epoch counts, and all training slides are trained on.
        """
        from dasmil.paper.camelyon16_labels import camelyon16_labels

        spec = replace(self.cohort, bags=features, labels=reference, classes=("Normal", "Tumor"))
        found = camelyon16_labels(features, reference)
        for split, labels in found.counts.items():
            note(f"CAMELYON16 {split}: " + ", ".join(f"{count} {label}" for label, count in labels.items()))
        for line in found.notes:
            note(f"  {line}")
        if self.folds is not None:
            parts = cohort_rounds(
                spec, folds=self.folds, split_seed=self.split_seed, labels=found.rows, note=note,
                memory_gb=self.memory_gb,
            )  # fmt: skip
            return [replace(part, data={**part.data, "set": CAMELYON16}) for part in parts]
        cohort = spec.load(found.rows, read_all=True, memory_gb=self.memory_gb)
        for line in cohort_lines(cohort, "as in the challenge"):
            note(line)
        parts = cohort.splits
        test = cohort.subset(parts.get("test", []))
        record: dict[str, Any] = {
            "bags": str(features), "classes": list(cohort.classes), "set": CAMELYON16, "cohort": spec.as_record(),
            "held_out": {"test": test.bag_ids}, "complete": found.complete, **cohort_words(cohort),
            "scale": noted(cohort.report.sizes.values()),
        }  # fmt: skip
        counted = len(test) > 0
        return [Round(cohort.subset(parts.get("train", [])), None, {"test": test} if counted else {}, record, counted)]


def built_in_split(name: str, protocol: str, split: str, mnist_dir: Path | None) -> Sequence[Bag]:
    """The bags of one split of a built-in data set."""
    from dasmil.data import load_dataset

    options = {} if mnist_dir is None else {"mnist_dir": mnist_dir}
    return load_dataset(name, protocol=protocol, split=split, **options)

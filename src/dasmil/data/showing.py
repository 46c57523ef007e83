"""What a cohort of this size can show: the smallest AUROC that its test patients show to be better than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dasmil.data.splits import TEST_SHARE, VAL_SHARE, make_folds, split_patients
from dasmil.errors import InputError
from dasmil.stats import auroc_to_find, smallest_auroc

FOLDS = 5


@dataclass(frozen=True)
class Showing:
    """Held-out patients: how many of the class and of the others, and what their AUROC can show.

    smallest: better than chance from here on, None: never; to_find: a true AUROC that four of five such cohorts tell.
    """

    where: str
    positives: int
    negatives: int
    smallest: float | None
    to_find: float | None

    @property
    def text(self) -> str:
        """ "test (8 + 7 patients): from 0.80 on"."""
        who = f"{self.where} ({self.positives} + {self.negatives} patients)"
        if self.smallest is None:
            return f"{who}: never"
        likely = f", likely if the true one is {self.to_find:.2f} or more" if self.to_find is not None else ""
        return f"{who}: from {self.smallest:.2f} on{likely}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def what_shows(
    patients: Sequence[str], labels: Sequence[int | None], splits: Mapping[str, Sequence[int]], classes: Sequence[str]
) -> list[Showing]:
    """What validation, test and the bags of five folds can show, as `dasmil train` would split them.

    Of more than two classes the rarest is meant, against all others. splits: bag numbers as the label table has them.
    """
    known = [i for i, label in enumerate(labels) if label is not None]
    numbers = [label for label in labels if label is not None]
    if len(set(numbers)) < 2:
        return []
    owners = [patients[i] for i in known]
    rare = (
        1 if len(classes) == 2 else min(set(numbers), key=lambda c: len({p for p, y in zip(owners, numbers) if y == c}))
    )

    def counts(part: Sequence[int]) -> tuple[int, int]:
        positive = {owners[i] for i in part if numbers[i] == rare}
        return len(positive), len({owners[i] for i in part} - positive)

    place = {bag: number for number, bag in enumerate(known)}
    named = {name: [place[i] for i in part if i in place] for name, part in splits.items()}
    parts = [(where, [counts(part) for part in sets]) for where, sets in scored_parts(owners, numbers, named)]
    return [
        Showing(where, sum(p for p, _ in sets), sum(n for _, n in sets), smallest_auroc(sets), auroc_to_find(sets))
        for where, sets in parts
    ]


def scored_parts(
    patients: Sequence[str], strata: Sequence[int], splits: Mapping[str, Sequence[int]]
) -> list[tuple[str, list[list[int]]]]:
    """The bags that are scored, as `dasmil train` would split them: validation, test, and the parts of five folds.

    splits: bag numbers as the label table has them; empty: patients are drawn, balanced by their strata.
    """
    named, parts = dict(splits), []
    try:
        if not named:
            shares = {"train": 1 - VAL_SHARE - TEST_SHARE, "val": VAL_SHARE, "test": TEST_SHARE}
            named = dict(split_patients(patients, strata, shares))
        parts += [(name, [list(named[name])]) for name in ("val", "test") if name in named]
        used = [i for name, part in named.items() if name != "test" or not splits for i in part]
        folds = make_folds([patients[i] for i in used], [strata[i] for i in used], FOLDS)
        parts.append((f"{FOLDS} folds, their mean", [[used[i] for i in fold.test] for fold in folds]))
    except InputError:  # too few patients for such a split: training says so
        pass
    return parts


def showing_text(found: Sequence[Showing], classes: Sequence[str]) -> str:
    """One sentence; empty where nothing is known."""
    if not found:
        return ""
    rare = "" if len(classes) == 2 else " of the rarest class against the rest"
    return f"An AUROC{rare} is better than chance (95 %) on {'; on '.join(part.text for part in found)}"

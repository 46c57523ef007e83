"""Locked test sets: opened only after training, noted beside the labels each time, and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasmil.errors import DataError, InputError
from dasmil.runs import BuiltIn, InMemory, OwnCohort, origin_from
from dasmil.study.data import built_in_split
from dasmil.study.notes import Note, silent
from dasmil.study.reading import built_in_set, run_cohort

if TYPE_CHECKING:
    from dasmil.data.cohort import Cohort
    from dasmil.study.rounds import Round
    from dasmil.types import Bag


def opened_tests(splits: Round, run: Path, note: Note = silent) -> Callable[[], Mapping[str, Sequence[Bag]]]:
    """The tests of a round as `fit` takes them: it asks when training has ended, and only then a locked set is opened.

    A run that has its scores already and is merely resumed opens nothing new.
    """
    from dasmil.runs import is_finished, read_summary

    def tests() -> Mapping[str, Sequence[Bag]]:
        if splits.counted and not (is_finished(run) and "test" in read_summary(run)["splits"]):
            count_opening(splits.data, run, len(splits.tests["test"]), note)
        return splits.tests

    return tests


def run_sets(
    data: Mapping[str, Any], names: Sequence[str] | None, mnist_dir: Path | None, run: Path, note: Note = silent
) -> dict[str, Sequence[Bag]]:
    """Sets of the built-in data of a run, or the locked ones of its cohort; by default its test sets."""
    match origin_from(data):
        case OwnCohort():
            return dict(held_out_bags(data, names, run, note))
        case InMemory():
            raise InputError(
                "this run was not trained on built-in data: give the bags to score with --bags and --labels"
            )
        case BuiltIn(known, protocol):
            chosen = names or (["test", "test-large"] if protocol == "clean" else ["test"])
            return {name: built_in_split(known, *built_in_set(protocol, name), mnist_dir) for name in chosen}


def held_out_bags(
    data: Mapping[str, Any], names: Sequence[str] | None, run: Path, note: Note = silent
) -> dict[str, Cohort]:
    """The locked sets of a run, opened: each time is noted in the log beside the labels, and counted."""
    from dasmil.report import write_report

    held = {name: ids for name, ids in data.get("held_out", {}).items() if ids}
    chosen = names or list(held)
    for name in chosen:
        if name not in held:
            raise InputError(f"this run has no locked set {name!r}; it has {', '.join(held) or 'none'}")
    if not chosen:
        used = "cross-validation, and the folds' scores are in its report" if "fold" in data else "training"
        raise InputError(
            f"{run} has no test set: every slide was used in {used}. Score other slides with --bags and --labels"
        )
    cohort = run_cohort(data)
    numbers = {bag_id: i for i, bag_id in enumerate(cohort.bag_ids)}
    sets: dict[str, Cohort] = {}
    for name in chosen:
        missing = [bag_id for bag_id in held[name] if bag_id not in numbers]
        if missing:
            raise DataError(f"{len(missing)} {name} bags are gone, for example {missing[0]!r}: put them back")
        sets[name] = cohort.subset(numbers[bag_id] for bag_id in held[name])
        count_opening(data, run, len(sets[name]), note)
        write_report(run)
    return sets


def count_opening(data: Mapping[str, Any], run: Path, n: int, note: Note) -> None:
    """Note one opening of the test set beside the labels and with the run, and say its number."""
    from dasmil.data.evaluation_log import log_evaluation
    from dasmil.data.splits import fingerprint
    from dasmil.runs import note_in_data

    where = Path(data["cohort"].get("labels") or data["cohort"]["bags"])
    count = log_evaluation(where, fingerprint(data["held_out"]["test"]), str(run))
    note(f"Test set opened ({n} bags): evaluation number {count} on it.")
    times = f"{count} time{'s' if count > 1 else ''} (all runs on these labels together)"
    note_in_data(run, test_set=f"{n} bags, opened {times}")

"""One's own bags as a source of training: splits or folds by patient, with the test set kept locked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasmil.cli.cohort_arguments import BagArguments, CohortArguments, show_cohort
from dasmil.cli.sources import Source, Splits

if TYPE_CHECKING:
    from dasmil.data.cohort import Cohort
    from dasmil.data.labels import LabelRow
    from dasmil.types import Bag

VAL_SHARE, TEST_SHARE = 0.15, 0.15
CAMELYON16 = "CAMELYON16"  # the "set" of its runs


def cohort_source(
    arguments: CohortArguments,
    *,
    folds: int | None = None,
    split_seed: int = 0,
    open_test: bool = False,
    labels: list[LabelRow] | None = None,
) -> Source:
    """Splits from the label table's split column, else by patient (70/15/15), or k folds.

    open_test: score the test set after training (it is counted); else it stays locked until `dasmil evaluate`.
    """

    def rounds() -> list[Splits]:
        from dasmil.data.match import check_trainable
        from dasmil.errors import InputError

        if arguments.labels is None and labels is None:
            raise InputError("no labels: give --labels, a CSV with slide and label (and patient and split if known)")
        cohort = arguments.load(labels)
        show_cohort(cohort)
        check_trainable(cohort.report)
        record = {
            "bags": str(arguments.bags), "classes": list(cohort.classes), "split_seed": split_seed,
            "cohort": {**arguments.as_record(), **_categories(cohort)}, **cohort_words(cohort),
        }  # fmt: skip
        if folds is not None:
            return _folds(cohort, folds, split_seed, record)
        parts = assign_splits(cohort, split_seed)
        test = cohort.subset(parts.get("test", []))
        _say_split(parts, cohort.splits, locked=bool(len(test)) and not open_test)
        _warn_of_one_class(cohort, parts)
        record["held_out"] = {"test": test.bag_ids}
        record["test_set"] = f"{len(test)} bags, locked" if len(test) else "none"
        counted = open_test and len(test) > 0
        if counted:  # how often it was opened is noted then; the settings of a run do not depend on it
            record["test_set"] = f"{len(test)} bags, opened after training"
        tests = {"test": test} if counted else {}
        return [Splits(cohort.subset(parts["train"]), cohort.subset(parts["val"]), tests, record, counted)]

    return Source(rounds)


def assign_splits(cohort: Cohort, seed: int) -> dict[str, list[int]]:
    """Bag numbers of train, val and test; what the label table leaves open is drawn by patient, stratified."""
    from dasmil.data.splits import split_patients
    from dasmil.errors import InputError

    parts = cohort.splits
    if not parts:
        shares = {"train": 1 - VAL_SHARE - TEST_SHARE, "val": VAL_SHARE, "test": TEST_SHARE}
        return split_patients(cohort.patients, cohort.labels, shares, seed)
    if "train" not in parts:
        raise InputError(f"the split column has {', '.join(parts)} but no slide for train")
    if "val" not in parts:
        train = parts["train"]
        drawn = split_patients(
            [cohort.patients[i] for i in train],
            [cohort.labels[i] for i in train],
            {"train": 1 - VAL_SHARE, "val": VAL_SHARE},
            seed,
        )
        parts = {**parts, **{name: [train[i] for i in members] for name, members in drawn.items()}}
    return parts


# What another cohort shares with the one a run was trained on; its files, labels and scale are its own.
_ALIKE = (
    "slide_column", "label_column", "patient_column", "per_patient", "max_instances", "bag_column", "x_column",
    "y_column", "one_hot", "feature_columns", "unit",
)  # fmt: skip


def read_alike(data: Mapping[str, Any], other: BagArguments) -> Cohort:
    """Other bags, read as those of a run were (same columns, same order of features and classes) but for what is given.

    The report is shown for labelled bags; of others only what did not match.
    """
    from dasmil.errors import InputError

    kept = {name: value for name, value in data.get("cohort", {}).items() if name in _ALIKE}
    if other.labels is None and kept.pop("per_patient", False):  # nobody knows which slides belong together
        print(
            "Warning: this run was trained on patients with all their slides joined; here each file is predicted "
            "alone (`dasmil evaluate` with --labels joins them)",
            file=sys.stderr,
        )
    classes = (data.get("classes") or None) if other.labels is not None else None
    if classes and other.classes is not None:
        raise InputError(
            f"--classes was given, but the run numbers its classes itself ({', '.join(classes)}): leave it out"
        )
    arguments = replace(BagArguments.from_record(kept), **other.given())
    cohort = arguments.load(categories=data.get("cohort", {}).get("categories"), classes=classes)
    if other.labels is not None:
        show_cohort(cohort)
    else:
        for line in cohort.report.unmatched:
            print(line, file=sys.stderr)
    return cohort


def run_cohort(data: Mapping[str, Any]) -> Cohort:
    """All bags of a run, read again from what it noted about its cohort."""
    arguments = CohortArguments.from_record(data["cohort"])
    labels = None
    if data.get("set") == CAMELYON16:  # its reference.csv is no label table: it has no header and no training slides
        from dasmil.data.camelyon16 import camelyon16_labels

        assert arguments.bags is not None
        assert arguments.labels is not None
        labels = camelyon16_labels(arguments.bags, arguments.labels).rows
    # The classes as the run numbered them: rows that were added to the table since must not renumber them.
    return arguments.load(labels, categories=data["cohort"].get("categories"), classes=data.get("classes"))


def opened_tests(splits: Splits, run: Path) -> Callable[[], Mapping[str, Sequence[Bag]]]:
    """The tests of a round as `fit` takes them: it asks when training has ended, and only then a locked set is opened.

    A run that has its scores already and is merely resumed opens nothing new.
    """
    from dasmil.runs import is_finished, note_in_data, read_summary

    def tests() -> Mapping[str, Sequence[Bag]]:
        if splits.counted and not (is_finished(run) and "test" in read_summary(run)["splits"]):
            n = len(splits.tests["test"])
            note_in_data(run, test_set=_opened(n, note_evaluation(splits.data, str(run), n)))
        return splits.tests

    return tests


def held_out_bags(data: dict[str, Any], names: Sequence[str] | None, run: Path) -> dict[str, Cohort]:
    """The locked sets of a run, opened: each time is noted in the log beside the labels, and counted."""
    from dasmil.errors import DataError, InputError
    from dasmil.report import write_report
    from dasmil.runs import note_in_data

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
        note_in_data(run, test_set=_opened(len(sets[name]), note_evaluation(data, str(run), len(sets[name]))))
        write_report(run)
    return sets


def note_evaluation(data: dict[str, Any], run: str, n: int) -> int:
    """Count one opening of the test set and say so."""
    from dasmil.data.evaluation_log import log_evaluation
    from dasmil.data.splits import fingerprint

    where = Path(data["cohort"].get("labels") or data["cohort"]["bags"])
    count = log_evaluation(where, fingerprint(data["held_out"]["test"]), run)
    print(f"Test set opened ({n} bags): evaluation number {count} on it.", file=sys.stderr)
    return count


def _folds(cohort: Cohort, folds: int, seed: int, record: dict[str, Any]) -> list[Splits]:
    from dasmil.data.splits import make_folds

    locked = cohort.splits.get("test", [])
    used = [i for i in range(len(cohort)) if i not in set(locked)]
    part = cohort.subset(used)
    record["held_out"] = {"test": [cohort.bag_ids[i] for i in locked]}
    record["test_set"] = f"{len(locked)} bags besides the folds, locked" if locked else "none besides the folds"
    if locked:
        print(f"{len(locked)} test slides stay locked; cross-validation uses the other {len(used)}", file=sys.stderr)
        _warn_of_one_class(cohort, {"test": locked})
    record["folds"] = folds
    return [
        Splits(part.subset(f.train), part.subset(f.val), {"test": part.subset(f.test)}, {**record, "fold": number})
        for number, f in enumerate(make_folds(part.patients, part.labels, folds, seed))
    ]


def _say_split(parts: dict[str, list[int]], table: Mapping[str, Sequence[int]], *, locked: bool) -> None:
    text = ", ".join(f"{name} {len(members)}" for name, members in parts.items())
    note = "; the test set stays locked until `dasmil evaluate`" if locked else ""
    drawn = "" if "val" in table else ", val drawn from train by patient"
    how = f"Split as the table says{drawn}" if table else "Split by patient"
    print(f"{how}: {text}{note}", file=sys.stderr)


def _warn_of_one_class(cohort: Cohort, parts: Mapping[str, Sequence[int]]) -> None:
    from dasmil.data.match import one_class_parts

    labels = cohort.labels
    for line in one_class_parts({name: [labels[i] for i in part] for name, part in parts.items()}, cohort.classes):
        print(f"Warning: {line}", file=sys.stderr)


def cohort_words(cohort: Cohort) -> dict[str, str]:
    """What the report says about the cohort: who is in it, what did not match, how positions were read."""
    lines = cohort.report.lines()
    found = {"slides": lines[0]}
    if lines[1:]:
        found["unmatched"] = "; ".join(lines[1:])
    if cohort.report.unreadable:
        found["left_out"] = "; ".join(f"{name}: {why}" for name, why in cohort.report.unreadable.items())
    return found | {"positions": cohort.positions}


def _opened(n: int, count: int) -> str:
    return f"{n} bags, opened {count} time{'s' if count > 1 else ''} (all runs on these labels together)"


def _categories(cohort: Cohort) -> dict[str, Any]:
    """The feature names of a table of cells in their order, which prediction must keep."""
    if not len(cohort) or cohort.entries[0].paths:
        return {}
    names = cohort[0].metadata.get("feature_names")
    return {} if names is None else {"categories": list(names)}


def choose_source(
    data: str | None,
    protocol: str,
    mnist_dir: Path | None,
    cohort: CohortArguments,
    *,
    folds: int | None,
    split_seed: int,
    open_test: bool,
    recipe: str | None,
    features: Path | None,
    reference: Path | None,
) -> Source:
    """Built-in data, one's own bags, or CAMELYON16, whichever the arguments of `dasmil train` name."""
    from dasmil.cli.sources import built_in
    from dasmil.errors import InputError

    named = [flag for flag, value in (("--data", data), ("--bags", cohort.bags), ("--features", features)) if value]
    if len(named) > 1:
        raise InputError(f"{' and '.join(named)} were given: choose one source of bags")
    if data is not None:
        if folds is not None or open_test:
            raise InputError("--folds and --test are for one's own bags; built-in data has fixed splits")
        return built_in(data, protocol, mnist_dir)
    if folds is not None and open_test:
        raise InputError(
            "--test was given with --folds, whose parts are tested already: leave --test out, and open test slides "
            "that the label table keeps apart with `dasmil evaluate`"
        )
    if features is not None:
        from dasmil.cli.camelyon16 import camelyon16_source

        if recipe != "camelyon16" or reference is None:
            raise InputError(
                "--features is for CAMELYON16: also give --recipe camelyon16 and --reference reference.csv"
            )
        return camelyon16_source(cohort, features, reference, folds=folds, split_seed=split_seed)
    if cohort.bags is not None:
        return cohort_source(cohort, folds=folds, split_seed=split_seed, open_test=open_test)
    raise InputError("nothing to train on: give --data mnist-collage, or --bags FOLDER --labels labels.csv")

"""Splits and predictions as other tools write them: CLAM, Patho-Bench and MIL-Lab, STAMP, torchmil, plain tables."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dasmil.data.labels import LABEL, PATIENT, SLIDE, SPLIT, SPLIT_NAMES, plain_slide
from dasmil.data.text_table import plain_number, read_rows
from dasmil.errors import DataError, InputError, named, shown
from dasmil.files import replacing

SETS = ("train", "val", "test")
TABLES = (".csv", ".tsv", ".txt", ".xlsx", ".parquet")
NAMES = (*SLIDE, *PATIENT, "bag_name", "slide_ids", "PATIENT", "FILENAME")
LABELS = (*LABEL, "Y", "y_true", "true_label", "gt")
SCORES = ("p_1", "prob_1", "probability", "prob", "score", "y_score", "probability_1", "y_prob", "pos_prob")
CLASSES = ("Y_hat", "prediction", "pred", "y_pred", "predicted", "predicted_label")
MOST_JSON = 50_000_000


@dataclass(frozen=True)
class GivenFold:
    """One fold as it was made elsewhere: the names of every set as they stand in the file; empty where there is none.

    patients: the names are those of patients, not of slides.
    """

    name: str
    sets: Mapping[str, Sequence[str]]
    patients: bool = False


@dataclass(frozen=True, eq=False)
class GivenPredictions:
    """Of one file: names, labels [n] (0 or 1), scores [n] (higher is class 1), chosen [n]: the predicted classes."""

    name: str
    names: Sequence[str]
    labels: NDArray[np.int64]
    scores: NDArray[np.float64]
    chosen: NDArray[np.int64] | None


def read_folds(path: str | Path) -> list[GivenFold]:
    """The folds of a file or folder: CLAM's ``splits_0.csv``, ``splits_1.csv``, ...; Patho-Bench's and MIL-Lab's
    ``k=all.tsv`` with columns ``fold_0``, ``fold_1``, ...; STAMP's ``splits.json``; torchmil's ``splits.csv`` and any
    table with a column of names and one of sets.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(
            (f for f in path.iterdir() if re.fullmatch(r"splits_\d+\.csv", f.name)), key=lambda f: _number(f.stem)
        )
        known = [f for name in ("splits.json", "k=all.tsv", "splits.csv") if (f := path / name).is_file()]
        if not files and not known:
            raise InputError(
                f"{path} holds no splits: expected splits_0.csv, splits_1.csv, ... (CLAM), k=all.tsv (Patho-Bench), "
                "splits.json (STAMP) or splits.csv (torchmil)"
            )
        return [fold for f in files or known[:1] for fold in read_folds(f)]
    if path.suffix.lower() == ".json":
        return _stamp(path)
    header, rows = read_rows(path, "table of splits")
    cells = [row for _, row in rows]
    columns = {column.lower(): column for column in header}
    if "train" in columns and "test" in columns:  # CLAM: a column for each set
        sets = {s: [row[columns[s]] for row in cells if row[columns[s]]] if s in columns else [] for s in SETS}
        if {value.lower() for names in sets.values() for value in names} <= {"true", "false"}:
            raise InputError(f"{path} holds True and False: give the file of names beside it, without _bool")
        return [GivenFold(path.stem, sets)]
    name = _column(path, header, NAMES, "a column of slides or patients")
    patients = name.lower() in PATIENT
    folds = [column for column in header if re.fullmatch(r"fold_?\d+", column.lower())]
    split = next((columns[s] for s in SPLIT if s in columns), None)
    if not folds and split is None:
        raise DataError(f"{path}: no columns fold_0, ..., and none named {named(SPLIT)} among {named(header)}")
    chosen = folds or ([split] if split else [])
    return [_by_value(path, column, cells, name, patients) for column in chosen]


def _by_value(path: Path, column: str, cells: Sequence[Mapping[str, str]], name: str, patients: bool) -> GivenFold:
    """A fold whose column says train, val or test; rows without a value are in no set."""
    sets: dict[str, list[str]] = {s: [] for s in SETS}
    for row in cells:
        value = row[column].strip().lower()
        if value in SPLIT_NAMES:
            sets[SPLIT_NAMES[value]].append(row[name])
        elif value not in ("", "nan"):
            raise DataError(f"{path}: column {shown(column)} holds {shown(row[column])}, expected train, val or test")
    return GivenFold(column if column.lower().startswith("fold") else path.stem, sets, patients)


def _stamp(path: Path) -> list[GivenFold]:
    """STAMP's record of a cross-validation: patients of every split."""
    if path.stat().st_size > MOST_JSON:
        raise DataError(f"{path} is larger than {MOST_JSON // 10**6} MB, expected a list of splits")
    try:
        splits = json.loads(path.read_text(encoding="utf-8"))["splits"]
        return [
            GivenFold(
                f"split-{k}",
                {s: [str(name) for name in split.get(f"{s}_patients", ())] for s in SETS},
                patients=True,
            )
            for k, split in enumerate(splits)
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DataError(f'{path} is no record of splits, expected {{"splits": [{{"train_patients": ...}}]}}') from None


def read_predictions_of_others(
    path: str | Path, positive: str | None = None, columns: Mapping[str, str | None] | None = None
) -> list[GivenPredictions]:
    """Predictions of two classes: one table, or a folder with one for each fold, ordered by the numbers in their names.

    positive: the label that counts as class 1 (default: the later one in order). columns: of ``name``, ``label``,
    ``score`` and ``class``, where they are not recognised.
    """
    path, given = Path(path), dict(columns or {})
    if path.is_dir():
        files = sorted((f for f in path.rglob("*") if f.suffix.lower() in TABLES), key=lambda f: _number(str(f)))
        if not files:
            raise InputError(f"{path} holds no tables of predictions, expected {named(TABLES)}")
        return [one for file in files for one in read_predictions_of_others(file, positive, given)]
    header, rows = read_rows(path, "table of predictions")
    name = given.get("name") or _column(path, header, NAMES, "a column of slides or patients (--name-column)")
    label = given.get("label") or _column(path, header, LABELS, "a column of true labels (--label-column)")
    score = given.get("score") or _column(path, header, SCORES, "a column of scores (--score-column)")
    chosen = given.get("class") or next((c for c in CLASSES if c in header), None)
    for column in (name, label, score, chosen):
        if column is not None and column not in header:
            raise InputError(f"{path} has no column {shown(column)}, but {named(header)}")
    cells = [row for _, row in rows]
    values = sorted({row[label] for row in cells}, key=lambda v: (plain_number(v) is None, plain_number(v) or 0, v))
    if len(values) > 2:
        raise InputError(f"{path}: {len(values)} labels ({named(values)}), but the audit is of two classes")
    top = positive if positive is not None else values[-1]
    if positive is not None and positive not in values:
        raise InputError(f"{path}: no label is {shown(positive)}, found {named(values)}")
    scores = [plain_number(row[score]) for row in cells]
    if bad := sum(s is None or not np.isfinite(s) for s in scores):
        raise DataError(f"{path}: {bad} of {len(scores)} values of {shown(score)} are no numbers")

    def is_top(value: str) -> bool:
        number, wanted = plain_number(value), plain_number(top)
        return value == top or (number is not None and number == wanted)

    return [
        GivenPredictions(
            path.name,
            [row[name] for row in cells],
            np.array([is_top(row[label]) for row in cells], dtype=np.int64),
            np.array(scores, dtype=np.float64),
            None if chosen is None else np.array([is_top(row[chosen]) for row in cells], dtype=np.int64),
        )
    ]


def write_fold_tables(splits: str | Path, labels: str | Path, folder: str | Path) -> list[Path]:
    """Write the label table once for each fold of another tool, with its sets in the column ``split``.

    Example: ``write_fold_tables("clam/splits/task", "labels.csv", "folds")``, then
    ``dasmil train --labels folds/splits_0.csv --test ...`` for each. Rows that a fold does not name are left out.
    """
    header, rows = read_rows(Path(labels))
    slide = _column(Path(labels), header, SLIDE, "a column of slides")
    patient = next((column for column in header if column.lower() in PATIENT), None)
    known = [row for _, row in rows]
    columns = [column for column in header if column.lower() not in SPLIT and not column.lower().startswith("fold")]
    written = []
    for fold in read_folds(splits):
        if fold.patients and patient is None:
            raise InputError(f"{splits} names patients, but {labels} has no column of patients: {named(header)}")
        key = patient if fold.patients and patient is not None else slide
        of = {same_name(name): part for part, names in fold.sets.items() for name in names}
        chosen = [row | {"split": of[name]} for row in known if (name := same_name(row[key])) in of]
        if not chosen:
            raise DataError(
                f"fold {fold.name} of {splits} names no slide of {labels}: names such as {next(iter(of))!r}"
            )
        path = Path(folder) / f"{fold.name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*columns, "split"], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(chosen)
        written.append(path)
    return written


def same_name(name: str) -> str:
    """What counts as one slide: without folder, ending and TCGA's further identifier."""
    plain = plain_slide(name)
    return plain.split(".")[0] if plain.startswith("TCGA-") else plain


def _column(path: Path, header: Sequence[str], known: Sequence[str], what: str) -> str:
    lower = {name.lower() for name in known}
    for wanted in known:
        if wanted in header:
            return wanted
    found = next((column for column in header if column.lower() in lower), None)
    if found is None:
        raise DataError(f"{path}: expected {what}, found the columns {named(header)}")
    return found


def _number(text: str) -> tuple[int, str]:
    digits = re.findall(r"\d+", Path(text).name)
    return (int(digits[-1]) if digits else -1, text)

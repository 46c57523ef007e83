"""Label tables: slide and label, perhaps patient and split; CLAM's and STAMP's tables as they are."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dasmil.data.positive import ordered
from dasmil.data.text_table import composed, plain_number, read_rows
from dasmil.errors import DataError, InputError, named, shown

# The names under which people keep these columns, ours first, then CLAM's, STAMP's and common ones.
SLIDE = ("slide", "slide_id", "filename", "bag", "bag_id", "image", "image_id", "file", "slide_name")
LABEL = ("label", "target", "class", "ground_truth", "outcome", "diagnosis")
PATIENT = ("patient", "patient_id", "case_id", "case", "subject", "patientid")
SPLIT = ("split", "set", "subset", "partition")

SLIDE_SUFFIXES = (
    ".h5", ".hdf5", ".pt", ".svs", ".tif", ".tiff", ".btf", ".tf8", ".ndpi", ".mrxs", ".scn", ".bif", ".czi", ".vms",
    ".vmu", ".svslide", ".dcm", ".qptiff", ".jpg", ".jpeg", ".png",
)  # fmt: skip

SPLIT_NAMES = {
    "train": "train", "training": "train", "tr": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val", "tune": "val",
    "test": "test", "testing": "test", "holdout": "test", "hold-out": "test",
}  # fmt: skip

# What tools write into an empty cell when they save a table (pandas, R, SQL). Not "none": it names a class too often.
EMPTY = ("", "nan", "na", "n/a", "null")
# What spreadsheet programs show in place of a value that they could not compute.
CELL_ERRORS = ("#n/a", "#ref!", "#div/0!", "#value!", "#name?", "#null!", "#num!", "#getting_data", "#spill!", "#calc!")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}( [0-9:]+)?")
Rows = Sequence[tuple[int, dict[str, str]]]


@dataclass(frozen=True)
class LabelRow:
    """One slide of a label table; label None means that the cell was empty, or said so (``EMPTY``)."""

    slide: str
    label: str | None
    patient: str | None = None
    split: str | None = None
    targets: tuple[tuple[str, float | None], ...] | None = None
    """Values of a task other than one class; ``label`` is then what splits are balanced by."""


@dataclass(frozen=True)
class TableRow:
    """A row of a label table: its line, its cells, and the slide that it is of."""

    number: int
    cells: dict[str, str]
    of: LabelRow


def renamed(rows: Sequence[LabelRow], pairs: Sequence[str]) -> list[LabelRow]:
    """The rows with classes called otherwise; pairs: "Tumour=tumor", of which the first is a name in the table."""
    names: dict[str, str] = {}
    for pair in pairs:
        before, equals, after = (part.strip() for part in pair.partition("="))
        if not (before and equals and after):
            raise InputError(f"--map {shown(pair)}: expected TABLE=CLASS, for example Tumour=tumor")
        if names.setdefault(before, after) != after:
            raise InputError(f"--map calls {shown(before)} both {shown(names[before])} and {shown(after)}: keep one")
    known = {row.label for row in rows if row.label is not None}
    if (unknown := next((name for name in names if name not in known), None)) is not None:
        raise InputError(f"--map names {shown(unknown)}, which is no class of the label table: {named(sorted(known))}")
    return [row if row.label is None else replace(row, label=names.get(row.label, row.label)) for row in rows]


def plain_slide(name: str) -> str:
    """A slide's name without folders and without a known file ending: both sides of a match go through it.

    Composed Unicode (NFC), because macOS decomposes the names of files and tables do not.
    """
    name = composed(name.strip().replace("\\", "/").rstrip("/").rpartition("/")[2])
    lower = name.lower()
    if not lower.endswith(SLIDE_SUFFIXES):
        return name
    suffix = next(suffix for suffix in SLIDE_SUFFIXES if lower.endswith(suffix))
    stem = name[: -len(suffix)]
    return stem[: -len(".ome")] if stem.lower().endswith(".ome") else stem


def read_labels(
    path: Path,
    *,
    slide_table: Path | None = None,
    slide_column: str | None = None,
    label_column: str | None = None,
    patient_column: str | None = None,
    split_column: str | None = None,
    classes: Sequence[str] = (),
) -> list[LabelRow]:
    """Read a label table (CSV, TSV or Excel); with ``slide_table`` it is STAMP's pair of a clini and a slide table.

    classes: names that are labels even if they look like an empty cell, such as NA.
    """
    header, rows = read_slides(
        path, slide_table=slide_table, slide_column=slide_column, patient_column=patient_column,
        split_column=split_column,
    )  # fmt: skip
    cells = [(row.number, row.cells) for row in rows]
    label = find_column(path, header, cells, "label", LABEL, label_column)
    if label is None:
        raise DataError(f"{path}: no label column among {named(header)}; name it with --label-column")
    need_values(path, cells, [label])
    for number, row in cells:
        if _DATE.fullmatch(row[label]) and row[label] not in classes:
            raise DataError(
                f"{path}, line {number}: the label is the date {row[label]}; spreadsheet programs make dates of names "
                "such as MARCH1 or 1/2: make the column text and write them again, or name the classes with --classes"
            )
    return [replace(row.of, label=cell if (cell := row.cells[label]) in classes else filled(cell)) for row in rows]


def read_slides(
    path: Path,
    *,
    slide_table: Path | None = None,
    slide_column: str | None = None,
    patient_column: str | None = None,
    split_column: str | None = None,
) -> tuple[list[str], list[TableRow]]:
    """The header of a label table and its rows, each with slide, patient and split, the label left open."""
    header, rows = read_rows(path)
    if slide_table is not None:
        rows, header = _join_stamp(path, header, rows, Path(slide_table), patient_column, slide_column)
    slide = find_column(path, header, rows, "slide", SLIDE, slide_column)
    patient = find_column(path, header, rows, "patient", PATIENT, patient_column)
    if slide is None:
        hint = " (a table of patients? then give the slides of each with --slide-table)" if patient else ""
        raise DataError(f"{path}: no slide column among {named(header)}{hint}; name it with --slide-column")
    split = find_column(path, header, rows, "split", SPLIT, split_column)
    need_values(path, rows, [name for name in (slide, patient, split) if name is not None])
    found: list[TableRow] = []
    for number, row in rows:
        if not row[slide]:
            raise DataError(f"{path}, line {number}: the slide name is empty; fill it in or remove the row")
        of = LabelRow(
            slide=plain_slide(row[slide]),
            label=None,
            patient=filled(row[patient]) if patient else None,
            split=_split_name(path, number, row[split]) if split else None,
        )
        found.append(TableRow(number, row, of))
    if not found:
        raise DataError(f"{path} has a header and no rows")
    return header, found


def read_patients(path: Path, slide_column: str | None = None, patient_column: str | None = None) -> dict[str, str]:
    """The patient of every slide, from a table of slides without labels (STAMP's slide table, or any with both)."""
    header, rows = read_rows(path)
    slide = find_column(path, header, rows, "slide", SLIDE, slide_column)
    patient = find_column(path, header, rows, "patient", PATIENT, patient_column)
    if slide is None or patient is None:
        what = "slide" if slide is None else "patient"
        raise DataError(f"{path}: no {what} column among {named(header)}; name it with --{what}-column")
    need_values(path, rows, [slide, patient])
    found: dict[str, str] = {}
    for number, row in rows:
        name, owner = plain_slide(row[slide]), filled(row[patient])
        if not name or owner is None:
            raise DataError(f"{path}, line {number}: slide or patient is empty; fill it in or remove the row")
        if found.setdefault(name, owner) != owner:
            raise DataError(f"{path}, line {number}: slide {shown(name)} has two patients; keep one row")
    return found


def find_column(
    path: Path, header: Sequence[str], rows: Rows, what: str, names: tuple[str, ...], chosen: str | None
) -> str | None:
    """The column for the label, the slide, ...: as chosen, else by its name; None where none has one of the names.

    Two columns that could be meant must say the same.
    """
    if chosen is not None:
        if chosen in header:
            return chosen
        raise InputError(f"{path}: no column {shown(chosen)} for the {what}; it has {named(header)}")
    found = [column for name in names for column in header if column.lower().replace(" ", "_") == name]
    for other in found[1:]:
        line = _contradiction(rows, found[0], other, plain_slide if what == "slide" else None)
        if line is not None:
            raise DataError(
                f"{path}: {shown(found[0])} and {shown(other)} could both be the column of the {what}, and they differ "
                f"(line {line}); name one with --{what}-column"
            )
    return found[0] if found else None


def _contradiction(rows: Rows, first: str, second: str, plain: Callable[[str], str] | None) -> int | None:
    """The line in which two columns say something else; columns that name the same groups by other words agree."""
    there: dict[str, str] = {}
    back: dict[str, str] = {}
    for number, row in rows:
        one, other = row[first], row[second]
        if plain is not None:
            if plain(one) != plain(other):
                return number
        elif there.setdefault(one, other) != other or back.setdefault(other, one) != one:
            return number
    return None


def need_values(path: Path, rows: Rows, columns: Sequence[str]) -> None:
    """Refuse cells in which a spreadsheet program shows an error in place of a value."""
    for number, row in rows:
        for name in columns:
            if row[name].lower() in CELL_ERRORS:
                raise DataError(
                    f"{path}, line {number}: {shown(name)} is {row[name]}, an error of a spreadsheet program; correct "
                    "the cell, or empty it"
                )


def names_bags(path: Path, column: str) -> bool:
    """Whether a label table without a column of slides has this one, which names the bags in a table of cells."""
    header, rows = read_rows(path)
    return column in header and find_column(path, header, rows, "slide", SLIDE, None) is None


def filled(cell: str) -> str | None:
    """What a cell says; None where it is empty, or says so."""
    return None if cell.lower() in EMPTY else cell


def _split_name(path: Path, number: int, value: str) -> str | None:
    if filled(value) is None:
        return None
    name = SPLIT_NAMES.get(value.lower())
    if name is None:
        raise DataError(f"{path}, line {number}: split is {shown(value)}, expected train, val or test")
    return name


def _join_stamp(
    path: Path,
    header: list[str],
    rows: list[tuple[int, dict[str, str]]],
    slide_table: Path,
    patient_column: str | None,
    slide_column: str | None,
) -> tuple[list[tuple[int, dict[str, str]]], list[str]]:
    """Give every slide of STAMP's slide table the row of its patient in the clini table."""
    slide_header, slide_rows = read_rows(slide_table)
    keys: list[str] = []
    for table, names, lines in ((path, header, rows), (slide_table, slide_header, slide_rows)):
        key = find_column(table, names, lines, "patient", PATIENT, patient_column)
        if key is None:
            raise DataError(f"{table}: no patient column among {named(names)}; name it with --patient-column")
        keys.append(key)
    slide = find_column(slide_table, slide_header, slide_rows, "slide", SLIDE, slide_column)
    if slide is None:
        raise DataError(f"{slide_table}: no slide column among {named(slide_header)}; name it with --slide-column")
    patients: dict[str, dict[str, str]] = {}
    for _, row in rows:
        if row[keys[0]] in patients:
            raise DataError(f"{path}: patient {shown(row[keys[0]])} is listed twice; keep one row")
        patients[row[keys[0]]] = row
    empty = dict.fromkeys(header, "")
    with_slides = {row[keys[1]] for _, row in slide_rows}
    joined = [
        (number, {**patients.get(row[keys[1]], empty), keys[0]: row[keys[1]], slide: row[slide]})
        for number, row in slide_rows
    ]
    missing = [patient for patient in patients if patient not in with_slides]
    # A patient without slides keeps a row, so that the cohort's report can name it.
    joined += [(0, {**patients[name], slide: f"(no slide of patient {name})"}) for name in missing]
    return joined, [*(name for name in header if name != slide), slide]


def class_names(
    labels: Iterable[str], order: Iterable[str] | None = None, positive: str | None = None
) -> tuple[str, ...]:
    """The classes, numbered 0, 1, ...: in the given order, else numbers by value and words by alphabet.

    Of two the positive one is last: the one that is named as positive, or that usual words tell (tumour, not normal).
    """
    found = set(labels)
    if order is not None:
        names = tuple(order)
        given = named(map(repr, names))
        if len(set(names)) != len(names):
            raise InputError(f"classes were given as {given}: name each once")
        unknown = sorted(found - set(names))
        if unknown:
            raise InputError(
                f"the table has slides of {named(map(shown, unknown))}, expected {given}: "
                "correct these labels, rename them with --map, leave their cells empty, or train with all classes in "
                "--classes"
            )
        return names
    numbers = {name: as_number(name) for name in found}
    odd = sorted(name for name, number in numbers.items() if number is not None and not math.isfinite(number))
    if odd:
        raise DataError(
            f"a label is {shown(odd[0])}, expected a class: leave the cell of a slide without a label empty, "
            "or name all classes with --classes"
        )
    # "1" and "1.0" are two classes of one value: the text decides between them, and not the order of a set.
    words = None in numbers.values()
    return ordered(sorted(found) if words else sorted(found, key=lambda name: (float(name), name)), positive)


def as_number(text: str) -> float | None:
    """The number that a class name is, or None for a word."""
    return plain_number(text)

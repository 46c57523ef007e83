"""Further columns of a label table: the site of a slide, and what else is known of its patient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dasmil.data.cohort import Cohort
from dasmil.data.formats import slide_name
from dasmil.data.labels import EMPTY, PATIENT, SLIDE, _join_stamp, find_column, need_values, plain_slide
from dasmil.data.match import shortened
from dasmil.data.text_table import plain_number, read_rows
from dasmil.errors import DataError, InputError, named, shown

Cells = dict[str, str | None]
LARGEST = 1e100  # squares of larger numbers overflow


@dataclass(frozen=True)
class FurtherColumns:
    """Cells of chosen columns by slide, and by patient; a cell that is empty, or says so, is None."""

    path: Path
    names: tuple[str, ...]
    slides: Mapping[str, Cells]
    patients: Mapping[str, Cells]

    def of(self, cohort: Cohort) -> list[Cells]:
        """The cells of every bag of a cohort: of its slide, or of all slides of its patient, which must agree."""
        nothing: Cells = dict.fromkeys(self.names)
        found = []
        for entry in cohort.entries:
            cells = None if cohort.joined else self.slides.get(plain_slide(entry.bag_id))
            cells = cells or (self.patients.get(entry.patient_id) if entry.patient_id is not None else None)
            if cells is None and entry.paths:
                cells = _agreeing(entry.bag_id, [self.slides.get(plain_slide(slide_name(p))) for p in entry.paths])
            found.append(cells or nothing)
        return found

    def column(self, cohort: Cohort, name: str) -> list[str | None]:
        """One column for every bag."""
        return [cells[name] for cells in self.of(cohort)]


def read_columns(
    path: Path,
    names: Sequence[str],
    *,
    slide_table: Path | None = None,
    slide_column: str | None = None,
    patient_column: str | None = None,
    option: str = "--covariates",
    by_slide: bool = False,
) -> FurtherColumns:
    """Chosen columns of a label table (with ``slide_table``, of its table of patients).

    option: what named the columns, for messages. Slides of one patient that disagree are an error, unless columns are
    of slides (by_slide, such as a scanner); then a patient has no cell of its own where its slides differ.
    """
    header, rows = read_rows(path)
    for name in names:
        if name not in header:
            raise InputError(f"{path}: no column {shown(name)} for {option}; it has {named(header)}")
    if len(set(names)) < len(names):
        raise InputError(f"{option} names a column twice: {named(names)}")
    if slide_table is not None:
        rows, header = _join_stamp(path, header, rows, Path(slide_table), patient_column, slide_column)
    need_values(path, rows, names)
    slide = find_column(path, header, rows, "slide", SLIDE, slide_column)
    patient = find_column(path, header, rows, "patient", PATIENT, patient_column)
    slides: dict[str, Cells] = {}
    owners: dict[str, list[Cells]] = {}
    for number, row in rows:
        cells: Cells = {name: None if row[name].lower() in EMPTY else row[name] for name in names}
        for name, cell in cells.items():
            value = plain_number(cell) if cell is not None else None
            if value is not None and not abs(value) < LARGEST:
                raise DataError(
                    f"{path}, line {number}: {shown(name)} is {shown(cell)}, expected a number below {LARGEST:g}: "
                    "correct it, or leave the cell empty"
                )
        if slide is not None and row[slide]:
            slides[plain_slide(row[slide])] = cells
        if patient is not None and row[patient].lower() not in EMPTY:
            owners.setdefault(row[patient], []).append(cells)
    agreeing = _shared if by_slide else _agreeing
    patients = {name: found for name, own in owners.items() if (found := agreeing(name, own)) is not None}
    return FurtherColumns(Path(path), tuple(names), slides, patients)


def _agreeing(owner: str, cells: Sequence[Cells | None]) -> Cells | None:
    """What several rows of one patient say together; a cell that one leaves empty another may fill."""
    known = [row for row in cells if row is not None]
    if not known:
        return None
    found: Cells = {}
    for name in known[0]:
        values = list(dict.fromkeys(row[name] for row in known if row[name] is not None))
        if len(values) > 1:
            raise DataError(
                f"patient {shown(owner)} has {named(map(shown, values))} in the column {shown(name)}: slides of one "
                "patient must agree; correct the table"
            )
        found[name] = values[0] if values else None
    return found


def _shared(_owner: str, cells: Sequence[Cells | None]) -> Cells | None:
    """What several rows of one patient have in common."""
    known = [row for row in cells if row is not None]
    values = {name: {row[name] for row in known if row[name] is not None} for name in known[0]} if known else {}
    return {name: own.pop() if len(own) == 1 else None for name, own in values.items()} if known else None


def complete_column(columns: FurtherColumns, cohort: Cohort, name: str, option: str) -> list[str]:
    """A column that no bag may lack."""
    values = columns.column(cohort, name)
    empty = [entry.bag_id for entry, value in zip(cohort.entries, values, strict=True) if value is None]
    if empty:
        raise DataError(
            f"{columns.path}: {len(empty)} of {len(values)} bags have no {shown(name)}: {shortened(empty)}; fill "
            f"it in, or leave {option} out"
        )
    return [value for value in values if value is not None]

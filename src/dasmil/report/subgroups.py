"""The metric in subgroups of patients: a table and a forest plot with intervals, and one test a column."""

from __future__ import annotations

import math

from dasmil.report.figures import Score, scores
from dasmil.report.page import Cell, Column, Section, Table, picture
from dasmil.report.style import ACCENT, GREY
from dasmil.report.words import decimal, interval_text
from dasmil.runs import Run, read_clinical
from dasmil.stats.subgroups import SMALLEST_GROUP, SubgroupRow, Subgroups, column_of
from dasmil.vocabulary import task_metric_of


def subgroups_section(run: Run) -> Section:
    """The subgroups that were kept with a run; empty without."""
    clinical = read_clinical(run.path)
    if "subgroups" not in clinical:
        return Section("Subgroups")
    return subgroup_parts(Subgroups.from_json(clinical["subgroups"]), clinical.get("subgroups_of", ""))


def subgroup_parts(found: Subgroups, split: str = "") -> Section:
    """Table, forest plot and tests."""
    metric = task_metric_of(found.metric).short
    tests = {test.column: test for test in found.tests}
    rows: list[list[str | Cell]] = [_row(found.overall, "")]
    seen: set[str] = set()
    for row in found.rows:
        test = tests[row.column]
        p = "" if row.column in seen else decimal(test.p_holm) if math.isfinite(test.p_holm) else test.why
        seen.add(row.column)
        rows.append(_row(row, p))
    columns = [Column("Subgroup"), Column("Patients", True), Column("With event", True), Column(metric, True),
               Column("p of a difference", True)]  # fmt: skip
    note = (
        f"{metric}{f' on {split}' if split else ''} with its 95 % interval over patients. p: one test a column of "
        f"whether its subgroups differ at all (Cochran's Q), corrected for the number of columns (Holm). Groups of "
        f"fewer than {SMALLEST_GROUP} patients have no figures. A large p does not show that subgroups are alike."
    )
    lines = [
        Score(_name(row), row.value, _ends(row), colour=GREY if k else ACCENT)
        for k, row in enumerate([found.overall, *found.rows])
        if math.isfinite(row.value)
    ]
    pictures = [picture(scores(lines, f"{metric}, 95 % interval"), f"{metric} in subgroups")] if lines else []
    differ = [t.column for t in found.tests if math.isfinite(t.p_holm) and t.p_holm < 0.05]
    tested = [t.column for t in found.tests if math.isfinite(t.p_holm)]
    text = f"{metric} differs between the subgroups of {', '.join(differ)} (p below 0.05 after correction)."
    if not differ:
        text = "No difference between subgroups is shown." if tested else "No column has two subgroups to compare."
    return Section("Subgroups", text=[text], tables=[Table(columns, rows, note=note)], pictures=pictures)


def _name(row: SubgroupRow) -> str:
    """ "site: north", or of a cut "age > 65"."""
    column = column_of(row.column)
    return row.name if not column else f"{column}{' ' if column != row.column else ': '}{row.name}"


def _row(row: SubgroupRow, p: str) -> list[str | Cell]:
    value = Cell(decimal(row.value), interval_text(_ends(row))) if math.isfinite(row.value) else Cell("–", row.why)
    small = row.why.startswith("fewer") or row.name == "not known"
    return [_name(row), str(row.patients), "–" if small else str(row.events), value, p]


def _ends(row: SubgroupRow) -> tuple[float, float] | None:
    return (row.low, row.high) if math.isfinite(row.low) else None

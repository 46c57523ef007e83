"""External validation: a run on labelled bags of elsewhere, written as a page with its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dasmil.errors import DasmilError, InputError
from dasmil.files import finite, for_spreadsheets, write_csv, write_json
from dasmil.report.external import External, external_page
from dasmil.report.page import write_page
from dasmil.runs import REPORT, LabelledSet, Run, labelled_set, read_domain
from dasmil.stats.conformal import coverage_of
from dasmil.stats.subgroups import class_subgroups
from dasmil.study.domain import moments
from dasmil.study.notes import Note, silent
from dasmil.study.reading import run_cohort
from dasmil.study.sets import run_sets_of, set_coverage_text
from dasmil.study.spec import BagSpec, CohortSpec
from dasmil.study.subgroups import run_cells, subgroup_cells

if TYPE_CHECKING:
    from dasmil.data.cohort import Cohort

Array = NDArray[np.float64]
COVERAGE = 0.9
PAGE, ROWS, SUMMARY = REPORT, "slides.csv", "external.json"


@dataclass(frozen=True)
class ExternalOptions:
    """What a page of external validation shows besides: columns for subgroups, prevalence and cost of a miss."""

    subgroups: Sequence[str] = ()
    prevalence: float | None = None
    missed_cost: float | None = None


def write_external(
    run: Run, spec: BagSpec, cohort: Cohort, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]],
    parts: Sequence[Array], out: Path, options: ExternalOptions, note: Note = silent,
) -> Path:  # fmt: skip
    """Write the page, slides.csv and external.json.

    rows: predictions of every bag without recalibration; parts: their probabilities by fold (a plain run has one).
    """
    labels = np.array([-1 if label is None else label for label in cohort.labels], dtype=np.int64)
    mean = np.mean(parts, axis=0)
    known = LabelledSet(cohort.bag_ids, labels, mean, cohort.patients, np.full(len(labels), run.threshold),
                   np.zeros(len(labels), dtype=np.int64))  # fmt: skip
    own = labelled_set(run, run.splits[0])
    assert own is not None
    columns = list(dict.fromkeys([*(CohortSpec.from_record(run.origin.get("cohort", {})).covariates or ()),
                                  *options.subgroups]))  # fmt: skip
    there = _cells(lambda: subgroup_cells(_as_cohort(spec), cohort, columns), columns, options.subgroups, note)
    here = _cells(lambda: run_cells(run, columns), columns, (), note)
    groups = None
    if options.subgroups:
        cells = {text: [there[text].get(bag) for bag in cohort.bag_ids] for text in options.subgroups}
        groups = class_subgroups(cells, labels, mean, cohort.patients)
    found = External(
        run=run, summary=summary, known=known, own=own, own_split=run.splits[0],
        sizes=_sizes(cohort), own_sizes=_own_sizes(run), cells=there, own_cells=here, rows=rows, subgroups=groups,
        looked=list(cohort.report.looked.values()), domain=read_domain(run.path),
        moments=moments(cohort)[0] if read_domain(run.path) is not None else None,
        sets=_sets(run, known, parts), clinical={"prevalence": options.prevalence, "missed_cost": options.missed_cost},
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / ROWS, [{name: for_spreadsheets(cell) for name, cell in row.items()} for row in rows])
    page, facts = external_page(found)
    write_json(out / SUMMARY, finite({**summary, **facts}))
    return write_page(page, out / PAGE)


def _as_cohort(spec: BagSpec) -> CohortSpec:
    return CohortSpec(**spec.given())


def _cells(read: Any, columns: Sequence[str], needed: Sequence[str], note: Note) -> dict[str, dict[str, str | None]]:
    """Cells by column and bag; what cannot be read is only an error where it was asked for."""
    if not columns:
        return {}
    try:
        return read()
    except DasmilError as error:
        if needed:
            raise
        note(f"Case mix without {', '.join(columns)}: {error}")
        return {}


def _sizes(cohort: Cohort) -> list[int]:
    return [len(cohort[i]) for i in range(len(cohort))]


def _own_sizes(run: Run) -> list[int]:
    if "cohort" not in run.origin:
        return []
    try:
        return _sizes(run_cohort(run.origin))
    except DasmilError:  # the training bags need not be here any more
        return []


def _sets(run: Run, known: LabelledSet, parts: Sequence[Array]) -> str:
    """Coverage of prediction sets on these bags, in one sentence, or why there is none."""
    try:
        made = run_sets_of(run, COVERAGE)
        return set_coverage_text(coverage_of(made.of(parts), known.labels, known.patients), COVERAGE, "here")
    except InputError as error:
        return f"No prediction sets: {error}."

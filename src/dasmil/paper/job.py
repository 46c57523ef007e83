"""One call of `dasmil reproduce`: train what is missing, then write tables, page and figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dasmil.data import load_dataset
from dasmil.engine import EngineOptions, Unit
from dasmil.errors import InputError, unknown_name
from dasmil.files import write_csv, write_text
from dasmil.paper import text
from dasmil.paper.cells import DATASETS, TABLES, Cell, make_cell, table_cells
from dasmil.paper.grid import DATASET as GRID_DATASET
from dasmil.paper.grid import choices, grid_plans, grid_units
from dasmil.paper.reproduce import Folders, cell_units, fill
from dasmil.paper.tables import claims, distance_values, entries
from dasmil.runs import Seed, load_model

FIGURE = "attention-figure"


@dataclass(frozen=True)
class Job:
    """What was asked for."""

    target: str
    protocol: str
    rows: Sequence[str] | None
    datasets: Sequence[str] | None
    seeds: int | None
    quick: bool
    train: bool = True

    @property
    def tables(self) -> list[str]:
        return [table for table in TABLES if self.target in (table, "all")]

    @property
    def grid(self) -> bool:
        return self.target in ("grid", "all")

    @property
    def figure(self) -> bool:
        return self.target in (FIGURE, "all")


@dataclass
class JobOutcome:
    """What came of it: sentences, files written, cells that failed."""

    texts: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"claims": self.texts, "files": [str(path) for path in self.files], "failed": self.failed}


def run_job(job: Job, folders: Folders, engine: EngineOptions) -> JobOutcome:
    """Train, then write."""
    for name in job.datasets or ():
        if name not in DATASETS:
            raise unknown_name("data set of the paper's tables", name, DATASETS)
    if job.rows and job.target == "all":
        raise InputError("--models needs one table: its rows differ between collage, ablations, tuned and grid")
    outcome = JobOutcome()
    if job.train:
        outcome.failed = fill(_units(job, folders), folders, engine=engine).failed
    write_outputs(job.protocol, folders.results, outcome, quick=job.quick)
    for table in job.tables:
        outcome.texts += claims(table, entries(table, job.protocol, folders.results))
    if job.figure and figure_cell(job).key not in outcome.failed:
        run = folders.runs / figure_cell(job).key
        missing = not Seed.of(run, 0).model_file.exists()
        text_missing = f"{run} holds no trained model for the attention figure: leave out --tables to train it"
        if missing and job.target == FIGURE:
            raise InputError(text_missing)
        outcome.texts += [text_missing] if missing else []
        outcome.files += [] if missing else _draw_figure(job, run, folders.results)
    return outcome


def figure_cell(job: Job) -> Cell:
    """The model of the attention figure: key and query embeddings, no value embeddings."""
    return make_cell("ablations", "kq", "mnist-collage", job.protocol, seeds=job.seeds, quick=job.quick)


def _units(job: Job, folders: Folders) -> list[Unit]:
    datasets = job.datasets or DATASETS
    cells = [
        cell
        for table in job.tables
        for cell in table_cells(table, job.protocol, rows=job.rows, datasets=datasets, seeds=job.seeds, quick=job.quick)
    ]
    units = cell_units(cells, folders)
    if job.figure:
        # The figure needs the trained weights, which results do not keep: they are in the run directory or made again.
        cell = figure_cell(job)
        (unit,) = cell_units([cell], folders)
        weights = Seed.of(folders.runs / cell.key, 0).model_file
        units = [u for u in units if u.key != unit.key]
        units.append(Unit(unit.key, unit.function, unit.arguments, str(weights)))
    if job.grid:
        plans = grid_plans(
            job.rows, job.protocol, dataset=datasets[0] if job.datasets else GRID_DATASET, quick=job.quick
        )
        units += grid_units(plans, folders.results)
    return units


def write_outputs(protocol: str, results: Path, outcome: JobOutcome, *, quick: bool = False) -> None:
    """Write every table of this protocol that has a finished cell, and the page."""
    from dasmil.paper.page import write_tables_page

    tables = {table: entries(table, protocol, results) for table in TABLES}
    for table, rows in tables.items():
        if not any(entry.cell for entry in rows):
            continue
        stem = results / table / protocol
        write_text(stem.with_suffix(".md"), text.markdown(table, protocol, rows))
        write_text(stem.with_suffix(".tex"), text.latex(table, protocol, rows))
        write_csv(stem.with_suffix(".csv"), text.csv_rows(rows))
        outcome.files += [stem.with_suffix(suffix) for suffix in (".md", ".csv", ".tex")]
    values = distance_values(protocol, results)
    if values:
        cells = [text.distance_cells(value) for value in values]
        content = text.distance_markdown(protocol, values)
        outcome.files += _write_plain(results / "distance" / protocol, content, text.DISTANCE_HEAD, cells)
    grid = choices(results, protocol)
    if grid:
        cells = [text.grid_cells(choice) for choice in grid]
        content = text.grid_markdown(protocol, grid)
        outcome.files += _write_plain(results / "grid" / protocol, content, text.GRID_HEAD, cells)
    if any(entry.cell for rows in tables.values() for entry in rows) or grid:
        page = results / f"{protocol}.html"
        outcome.files.append(write_tables_page(page, protocol, tables, values, grid, quick=quick))


def _write_plain(stem: Path, content: str, head: Sequence[str], cells: Sequence[Sequence[str]]) -> list[Path]:
    """A small table as Markdown, CSV and LaTeX."""
    write_text(stem.with_suffix(".md"), content)
    write_csv(stem.with_suffix(".csv"), [dict(zip(head, row)) for row in cells])
    title = content.splitlines()[0].removeprefix("# ")
    write_text(stem.with_suffix(".tex"), text.plain_latex(title, head, cells))
    return [stem.with_suffix(suffix) for suffix in (".md", ".csv", ".tex")]


def _draw_figure(job: Job, run: Path, results: Path) -> list[Path]:
    from dasmil.paper.figures import write_attention_figure

    bags = load_dataset("mnist-collage", protocol=job.protocol, split="test")
    return write_attention_figure(load_model(run), bags, results / FIGURE)

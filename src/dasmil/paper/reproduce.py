"""`dasmil reproduce`: train the cells that are missing, then write tables, page and figure from what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.data import load_dataset
from dasmil.engine import EngineOptions, Progress, Unit, run_units
from dasmil.errors import DataError, InputError, unknown_name
from dasmil.files import differences, finite, write_csv, write_text
from dasmil.paper import text
from dasmil.paper.cells import DATASETS, TABLES, GridCell, held_out, make_cell, table_cells
from dasmil.paper.grid import DATASET as GRID_DATASET
from dasmil.paper.grid import check_grid_unit, choices, grid_files, grid_plans, grid_units
from dasmil.paper.stored import cell_path, check_cell, read_cell
from dasmil.paper.tables import claims, distance_values, entries
from dasmil.runs import Seed, load_model

FIGURE = "attention-figure"


@dataclass(frozen=True)
class Folders:
    """Where things go: run directories (large, outside of version control) and results (small, kept)."""

    runs: Path
    results: Path

    @classmethod
    def choose(cls, out: Path, results: Path | None, *, quick: bool) -> Folders:
        """Results default to docs/results in a checkout that has them, else to out/results; quick ones stay apart."""
        if quick:
            if results is not None:
                raise InputError("--quick writes to its own folder below --out, so that nobody takes it for a result")
            return cls(out / "quick" / "runs", out / "quick" / "results")
        kept = Path("docs/results")
        return cls(out / "runs", results or (kept if (kept / "collage").is_dir() else out / "results"))


@dataclass(frozen=True)
class ReproductionRequest:
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
class Reproduction:
    """What came of it: sentences, files written, cells that failed."""

    texts: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"claims": self.texts, "files": [str(path) for path in self.files], "failed": self.failed}


def reproduce(
    asked: ReproductionRequest,
    folders: Folders,
    engine: EngineOptions,
    report: Callable[[Progress], None] | None = None,
) -> Reproduction:
    """Train what is missing, where failures are collected and do not stop the others, then write."""
    for name in asked.datasets or ():
        if name not in DATASETS:
            raise unknown_name("data set of the paper's tables", name, DATASETS)
    if asked.rows and asked.target == "all":
        raise InputError("--models needs one table: its rows differ between collage, ablations, tuned and grid")
    outcome = Reproduction()
    if asked.train:
        outcome.failed = run_units(_units(asked, folders), folders.runs, engine, report).failed
    write_outputs(asked.protocol, folders.results, outcome, quick=asked.quick)
    outcome.texts += [text.QUICK] if asked.quick else []
    for table in asked.tables:
        outcome.texts += claims(table, entries(table, asked.protocol, folders.results))
    if asked.figure and figure_cell(asked).key not in outcome.failed:
        run = folders.runs / figure_cell(asked).key
        missing = not Seed.of(run, 0).model_file.exists()
        text_missing = f"{run} holds no trained model for the attention figure: leave out --tables to train it"
        if missing and asked.target == FIGURE:
            raise InputError(text_missing)
        outcome.texts += [text_missing] if missing else []
        outcome.files += [] if missing else _draw_figure(asked, run, folders.results)
    return outcome


def cell_units(cells: Sequence[GridCell], folders: Folders) -> list[Unit]:
    """The work of these cells; a cell that was filled with other settings is an error, never quietly mixed in."""
    units: dict[str, Unit] = {}
    for cell in cells:
        result = cell_path(folders.results, cell.key)
        done = read_cell(result)
        plan = cell.plan()
        if done is not None:
            changes = differences(done["plan"], finite(plan))
            if changes:
                raise InputError(
                    f"{result} was made with other settings ({'; '.join(changes[:4])}): choose another folder with "
                    "--results, or remove that file to train this cell again"
                )
        arguments = {"plan": plan, "run": str(folders.runs / cell.key), "result": str(result)}
        units[cell.key] = Unit(cell.key, "dasmil.paper.cells:run_cell", arguments, str(result))
    return list(units.values())


def figure_cell(asked: ReproductionRequest) -> GridCell:
    """The model of the attention figure: key and query embeddings, no value embeddings."""
    return make_cell("ablations", "kq", "mnist-collage", asked.protocol, seeds=asked.seeds, quick=asked.quick)


def _units(asked: ReproductionRequest, folders: Folders) -> list[Unit]:
    datasets = asked.datasets or DATASETS
    cells = [
        cell
        for table in asked.tables
        for cell in table_cells(
            table, asked.protocol, rows=asked.rows, datasets=datasets, seeds=asked.seeds, quick=asked.quick
        )
    ]
    units = cell_units(cells, folders)
    if asked.figure:
        # The figure needs the trained weights, which results do not keep: they are in the run directory or made again.
        cell = figure_cell(asked)
        (unit,) = cell_units([cell], folders)
        weights = Seed.of(folders.runs / cell.key, 0).model_file
        units = [u for u in units if u.key != unit.key]
        units.append(Unit(unit.key, unit.function, unit.arguments, str(weights)))
    if asked.grid:
        plans = grid_plans(
            asked.rows, asked.protocol, dataset=datasets[0] if asked.datasets else GRID_DATASET, quick=asked.quick
        )
        units += grid_units(plans, folders.results)
    return units


def write_outputs(protocol: str, results: Path, outcome: Reproduction, *, quick: bool = False) -> None:
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


def _draw_figure(asked: ReproductionRequest, run: Path, results: Path) -> list[Path]:
    from dasmil.paper.figures import write_attention_figure

    bags = load_dataset("mnist-collage", protocol=asked.protocol, split="test")
    return write_attention_figure(load_model(run), bags, results / FIGURE)


def check(results: Path) -> dict[str, Any]:
    """Recompute every summary below `results` from its stored predictions; the labels are made anew from the data."""
    files = sorted(p for p in results.glob("*/*/*.json") if p.with_suffix(".npz").exists())
    grid = set(grid_files(results))
    cells = [path for path in files if path not in grid]
    missing = [p for p in results.glob("*/*/*.npz") if not p.with_suffix(".json").exists()]
    if not files:
        raise DataError(f"{results} holds no stored cells: run dasmil reproduce first, or give --results")
    labels: dict[tuple[str, str], dict[str, NDArray[Any]]] = {}

    def labels_of(plan: dict[str, Any]) -> dict[str, NDArray[Any]]:
        key = (plan["dataset"], plan["protocol"])
        if key not in labels:
            sets = {"train": load_dataset(key[0], protocol=key[1], split="train"), **held_out(*key)}
            labels[key] = {name: np.array([bag.label for bag in bags]) for name, bags in sets.items()}
        return labels[key]

    wrong: dict[str, list[str]] = {str(p): ["predictions without a manifest"] for p in missing}
    for path in cells:
        manifest = read_cell(path)
        assert manifest is not None
        found = check_cell(path, labels_of(manifest["plan"]))
        if cell_path(results, _key(manifest["plan"])) != path:
            found.append(f"the manifest is that of {_key(manifest['plan'])}")
        if found:
            wrong[str(path)] = found
    for path in sorted(grid):
        found = check_grid_unit(path, labels_of)
        if found:
            wrong[str(path)] = found
    return {"cells": len(cells), "grid_units": len(grid), "wrong": wrong}


def _key(plan: dict[str, Any]) -> str:
    return f"{plan['table']}/{plan['protocol']}/{plan['row']}/{plan['dataset']}"

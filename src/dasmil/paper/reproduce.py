"""Fill the cells that are missing, and write every table from those that are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.engine import EngineOptions, Progress, Unit, run_units
from dasmil.errors import DataError, InputError
from dasmil.files import differences, finite
from dasmil.paper.cells import Cell, held_out
from dasmil.paper.stored import cell_path, check_cell, read_cell


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


def cell_units(cells: Sequence[Cell], folders: Folders) -> list[Unit]:
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


def fill(
    units: Sequence[Unit],
    folders: Folders,
    *,
    engine: EngineOptions,
    report: Callable[[Progress], None] | None = None,
) -> Progress:
    """Train what is missing; failures are collected and do not stop the others."""
    return run_units(units, folders.runs, engine, report)


def check(results: Path) -> dict[str, Any]:
    """Recompute every summary below `results` from its stored predictions; the labels are made anew from the data."""
    from dasmil.data import load_dataset
    from dasmil.paper.grid import check_grid_unit, grid_files

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

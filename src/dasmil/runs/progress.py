"""How far runs below a folder have come, read from their files alone, while others write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dasmil.errors import DasmilError
from dasmil.runs import layout
from dasmil.runs.predictions import read_history
from dasmil.runs.records import json_file


@dataclass(frozen=True)
class RunProgress:
    """One run (or cross-validation): what it is, how far it came, and its curves by "fold-0/seed-1" and column.

    written: when it last wrote (seconds since 1970); settings: of training and of the model, flat.
    """

    finished: bool
    written: float
    epoch: int | None
    epochs: int | None
    model: str
    data: str
    task: str
    seeds: int
    folds: int
    settings: Mapping[str, Any]
    curves: Mapping[str, Mapping[str, list[float | None]]]


def run_folders(folder: Path) -> list[Path]:
    """Every run below a folder (or the folder itself), begun or finished, by path; folds belong to their run."""
    found: dict[Path, None] = {}
    for file in folder.rglob(layout.CONFIG):
        run = file.parent
        if run.name.startswith("seed-"):  # a model saved for a hub has a config.json too
            continue
        fold = run.name.startswith("fold-") and run != folder
        found[run.parent if fold and run in layout.numbered(run.parent, "fold") else run] = None
    return sorted(found)


def last_written(path: Path) -> float:
    """When a run (or one of its folds) wrote last, in seconds since 1970; it changes with every epoch and result."""
    parts = _parts(path)
    names = (layout.SUMMARY, layout.CHECKPOINT_FACTS, layout.CONFIG, layout.REPORT)
    files = (part / name for part in dict.fromkeys((path, *parts)) for name in names)
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


def _parts(path: Path) -> list[Path]:
    return [path] if layout.is_begun(path) else layout.fold_folders(path)


def run_progress(path: Path, *, curves: bool = True) -> RunProgress:
    """The state of one run; files that are being written, or are damaged, count as not there.

    curves: False leaves these out, which is quick.
    """
    parts = _parts(path)
    config = _json(parts[0], layout.CONFIG) if parts else {}
    facts = [_json(part, layout.CHECKPOINT_FACTS) for part in parts]
    data, training = config.get("data") or {}, config.get("training") or {}
    model = config.get("model") or {}
    epochs = [int(one["epoch"]) for one in facts if isinstance(one.get("epoch"), int)]
    found = {}
    for part in parts if curves else []:
        for seed in layout.numbered(part, "seed"):
            try:
                columns = read_history(seed / layout.HISTORY)
            except (DasmilError, OSError):
                continue
            name = seed.name if part == path else f"{part.name}/{seed.name}"
            found[name] = {
                column: [float(v) if math.isfinite(v) else None for v in values] for column, values in columns.items()
            }
    options = model.get("options") or {}
    return RunProgress(
        finished=layout.is_finished(path),
        written=last_written(path),
        epoch=max(epochs, default=None),
        epochs=training.get("epochs"),
        model=str(model.get("name", "unknown")),
        data=str(data.get("name") or Path(str(data.get("bags", "own bags"))).name),
        task=str((config.get("task") or {}).get("kind", "classification")),
        seeds=len(config.get("seeds") or ()),
        folds=0 if layout.is_begun(path) else len(parts),
        settings={**training, **options, "preset": model.get("preset")},
        curves=found,
    )


def _json(folder: Path, name: str) -> dict[str, Any]:
    try:
        return json_file(folder, name) if (folder / name).is_file() else {}
    except (DasmilError, OSError):
        return {}

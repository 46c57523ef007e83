"""All runs below a folder as rows of one page: what each is, how far it came, its score and its curves."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dasmil.errors import DasmilError, InputError
from dasmil.runs import REPORT, Run, last_written, run_folders, run_progress
from dasmil.study.shelf import make_shelf
from dasmil.study.starting import Starter
from dasmil.viewer.shelf import Shelf
from dasmil.vocabulary import task_metric

FRESH_S = 300.0
"""A run that is not finished and wrote nothing for so long has stopped."""


@dataclass
class Board:
    """The runs below a folder, read anew where their files changed; slides: of the viewer of each run.

    starter: what starts and stops studies; None: the page only reads.
    """

    folder: Path
    slides: Path | None = None
    starter: Starter | None = None

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise InputError(f"{self.folder} is not a folder: expected one with runs of dasmil train below it")
        self._known: dict[Path, tuple[float, dict[str, Any]]] = {}

    @property
    def title(self) -> str:
        return str(self.folder)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each run, by the path below the folder, which is its name."""
        return [self._row(path) for path in run_folders(self.folder)]

    def _row(self, path: Path) -> dict[str, Any]:
        written = last_written(path)
        known = self._known.get(path)
        if known is None or known[0] != written:
            known = (written, _facts(path))
            self._known[path] = known
        row = known[1]
        fresh = time.time() - written < FRESH_S
        status = "finished" if row["finished"] else "training" if fresh else "stopped"
        hint = "" if status != "stopped" else "repeat its command with --resume to go on"
        return row | {"name": self._name(path), "written": written, "status": status, "hint": hint}

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix() if path != self.folder else path.resolve().name

    def path(self, name: str) -> Path:
        """The folder of a run that the page lists; no other name leads anywhere."""
        for path in run_folders(self.folder):
            if self._name(path) == name:
                return path
        raise InputError(f"there is no run {name!r} here")

    def curves(self, name: str) -> dict[str, Any]:
        """The curves of every seed (and fold) so far, and the settings of the run."""
        state = run_progress(self.path(name))
        return {"curves": state.curves, "settings": state.settings}

    def report(self, name: str) -> bytes:
        """The page of a finished run."""
        file = self.path(name) / REPORT
        if not file.is_file():
            raise InputError(f"run {name!r} has no report yet")
        return file.read_bytes()

    def shelf(self, name: str) -> Shelf:
        """What the viewer shows of a finished run."""
        return make_shelf(self.path(name), slides=self.slides)


def _facts(path: Path) -> dict[str, Any]:
    """Model, data, task and score of a run; what is wrong with it, where it cannot be read."""
    state = run_progress(path, curves=False)
    facts: dict[str, Any] = {
        "model": state.model, "data": state.data, "task": state.task, "seeds": state.seeds, "folds": state.folds,
        "metric": "", "score": None, "low": None, "high": None, "split": "", "bags": None, "problem": "",
        "finished": state.finished, "epoch": state.epoch, "epochs": state.epochs,
        "report": state.finished and (path / REPORT).is_file(),
    }  # fmt: skip
    if not state.finished:
        return facts
    try:
        run = Run.read(path)
        split = run.splits[0]
        scored = run.summary["splits"][split]
        metric = run.asked.main
        ends = scored["interval"].get(metric) or (None, None)
        facts |= {
            "metric": task_metric(metric, run.asked.unit), "split": split,
            "score": scored["mean"].get(metric), "low": ends[0], "high": ends[1], "bags": scored["n"],
        }  # fmt: skip
    except (DasmilError, KeyError, IndexError) as error:
        facts["problem"] = str(error)
    return facts

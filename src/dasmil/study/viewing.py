"""A run in the browser, from Python as from the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dasmil.errors import InputError
from dasmil.runs import fold_folders, is_begun, model_files, run_folders
from dasmil.study.board import Board
from dasmil.study.notes import Note, silent
from dasmil.study.shelf import make_shelf
from dasmil.study.starting import Starter
from dasmil.viewer.serving import serve, serve_runs


def view(
    run: str | Path | None = None,
    *,
    model: str | Path | None = None,
    bags: str | Path | None = None,
    slides: str | Path | None = None,
    compare: Sequence[str | Path] = (),
    seed: int | None = None,
    split: Sequence[str] | None = None,
    mpp: str | None = None,
    tile_um: float | None = None,
    scale_table: str | Path | None = None,
    per_patient: bool = False,
    slide_table: str | Path | None = None,
    mnist_dir: str | Path | None = None,
    port: int = 0,
    open_browser: bool = True,
    allow_start: bool = False,
    ready: Callable[[str, int], None] = lambda _address, _count: None,
    note: Note = silent,
) -> None:
    """Serve the viewer's page on this machine until it is stopped (Ctrl-C), as `dasmil view`.

    Example: ``dasmil.view("runs/mine", slides="slides/", ready=print)``

    run: a run directory, or a folder of runs, which are then listed with their scores and live curves; or model: a
    model file, with bags: the folder of feature files to show. slides: the folder with the slides; per_patient,
    slide_table: as of ``predict``; compare: further runs; seed, split: which seed explains first, which sets of the run
    are listed. port: on 127.0.0.1, 0 takes a free one. ready: called with the
    address of the page and the number of bags (or runs) once it answers. allow_start: the page of a folder of runs can
    start the study files below it, and stop them.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"--port is {port}, expected 0 (a free one) to 65535")
    folder = None if run is None else Path(run)
    starter = None if folder is None or not allow_start else Starter(folder)
    if (
        folder is not None
        and model is None
        and bags is None
        and (holds_runs(folder) or _holds_studies(folder, starter))
    ):
        board = Board(folder, None if slides is None else Path(slides), starter)
        try:
            serve_runs(board, port, open_browser, lambda address: ready(address, len(board.rows())))
        finally:  # Ctrl-C comes through here
            if starter is not None and (left := starter.running()):
                note(f"{', '.join(left)}: started from the page and still running; the output is in the .log beside it")
        return
    if allow_start:
        raise InputError("--allow-start is for a folder of runs or study files: dasmil view runs/ --allow-start")
    paths = {
        "model": model, "bags": bags, "slides": slides, "scale_table": scale_table, "slide_table": slide_table,
        "mnist_dir": mnist_dir,
    }  # fmt: skip
    shelf = make_shelf(
        None if run is None else Path(run), compare=[Path(other) for other in compare], seed=seed, split=split, mpp=mpp,
        tile_um=tile_um, per_patient=per_patient, note=note,
        **{name: None if path is None else Path(path) for name, path in paths.items()},
    )  # fmt: skip
    serve(shelf, port, open_browser, lambda address: ready(address, len(shelf.entries)))


def _holds_studies(folder: Path, starter: Starter | None) -> bool:
    """Whether there is something to start where no run was made yet."""
    return starter is not None and not is_begun(folder) and folder.is_dir() and bool(starter.studies())


def holds_runs(folder: Path) -> bool:
    """Whether a folder is no run itself and holds some."""
    own = is_begun(folder) or fold_folders(folder) or model_files(folder)
    return folder.is_dir() and not own and bool(run_folders(folder))

"""A run in the browser, from Python as from the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dasmil.errors import InputError
from dasmil.study.notes import Note, silent
from dasmil.study.shelf import make_shelf
from dasmil.viewer.serving import serve


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
    ready: Callable[[str, int], None] = lambda _address, _bags: None,
    note: Note = silent,
) -> None:
    """Serve the viewer's page on this machine until it is stopped (Ctrl-C), as `dasmil view`.

    Example: ``dasmil.view("runs/mine", slides="slides/", ready=print)``

    run: a run directory; or model: a model file, with bags: the folder of feature files to show. slides: the folder
    with the slides; per_patient, slide_table: as of ``predict``; compare: further runs; seed, split: which seed
    explains first, which sets of the run are listed. port: on 127.0.0.1, 0 takes a free one. ready: called with the
    address of the page and the number of bags once it answers.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"--port is {port}, expected 0 (a free one) to 65535")
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

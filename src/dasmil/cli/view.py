"""dasmil view: look at bags, their instances and what these attend to, in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from collections.abc import Callable

    from dasmil.types import Bag
    from dasmil.viewer.shelf import Picture, Shelf

app = App(name="view", help="Look at bags and what decided, in the browser.")


@app.default
def view(
    run: Path | None = None,
    /,
    *,
    model: Path | None = None,
    bags: Path | None = None,
    slides: Path | None = None,
    compare: Annotated[list[Path] | None, Parameter(consume_multiple=True)] = None,
    seed: int | None = None,
    split: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    mpp: str | None = None,
    tile_um: float | None = None,
    scale_table: Path | None = None,
    mnist_dir: Path | None = None,
    port: int = 0,
    open_browser: Annotated[bool, Parameter(name="--open", negative="--no-open")] = True,
) -> None:
    """Look at bags and what decided, in the browser.

    A page served on this machine only (127.0.0.1): the list of bags, the slide with its instances coloured by what they
    contributed, and, on a click, what an instance attends to at which distance. Ctrl-C ends it.

    Examples:

        dasmil view runs/mine --slides slides/

        dasmil view runs/mine --compare runs/other

        dasmil view --model runs/mine/seed-0/model.safetensors --bags bags/

    Parameters
    ----------
    run: Path
        Run directory written by dasmil train; of a cross-validation, each bag by the fold that held it out.
    model: Path
        A model file, instead of a run; needs --bags.
    bags: Path
        Folder of feature files to show, with --model or instead of the bags of the run; of a run that was trained on a
        table of cells, another such table.
    slides: Path
        Folder with the slides; a slide belongs to the bag of the same name. Without it: a plain ground.
    compare: list[Path]
        Further runs (or model files) that can be chosen in the page, for example to stand beside the first.
    seed: int
        Which seed of the run explains; default the first. The others can be chosen in the page, or stand beside it.
    split: list[str]
        Which sets of the run to list; default all that it predicted, test sets first. Not with --bags.
    mpp: str
        Micrometres per level-0 pixel, where foreign feature files do not say.
    tile_um: float
        Edge of a tile in micrometres, where foreign feature files do not say.
    scale_table: Path
        CSV with slide and any of mpp, tile_um, for slides that differ.
    mnist_dir: Path
        Folder with the four MNIST idx files, for runs that were trained with them.
    port: int
        Port on 127.0.0.1; 0 takes a free one.
    open_browser: bool
        Open the page in the browser, where there is a desktop.
    """
    from dasmil.cli.view_shelf import folder_shelf, run_shelf
    from dasmil.errors import InputError

    scale: dict[str, Any] = {"mpp": mpp, "tile_um": tile_um, "scale_table": scale_table}
    if (run is None) == (model is None):
        raise InputError("give a run directory, or --model FILE with --bags FOLDER (one of the two)")
    if model is not None and bags is None:
        raise InputError("--model needs --bags, the folder of feature files to show")
    if not 0 <= port <= 65535:
        raise InputError(f"--port is {port}, expected 0 (a free one) to 65535")
    if split and bags is not None:
        raise InputError("--split names sets of the run, but --bags gives other bags to show: leave one of them out")
    if slides is not None and not slides.is_dir():
        raise InputError(f"{slides} is not a folder: --slides takes the folder that holds the slides")
    find_picture = _pictures(slides)
    if run is not None:
        if bags is None:
            shelf = run_shelf(run, compare or (), seed, split, mnist_dir, find_picture)
        else:
            from dasmil.runs import Run

            shelf = folder_shelf(run, compare or (), seed, bags, scale, find_picture, Run.read(run).origin)
    else:
        assert model is not None
        assert bags is not None
        shelf = folder_shelf(model, compare or (), None, bags, scale, find_picture)
    serve(shelf, port, open_browser)


def serve(shelf: Shelf, port: int, open_browser: bool) -> None:
    """Serve a shelf on the loopback interface until Ctrl-C."""
    import os
    import socket
    import sys
    import threading
    import webbrowser

    import uvicorn

    from dasmil.errors import InputError
    from dasmil.viewer.server import create_app

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)  # the address answers as soon as it is printed
    except OSError as error:
        raise InputError(f"port {port} cannot be used ({error.strerror}): choose another with --port, or 0") from error
    port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    desktop = sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    print(
        f"{len(shelf.entries):,} bag{'' if len(shelf.entries) == 1 else 's'}. Ctrl-C ends the viewer. Open:\n{url}",
        flush=True,
    )
    if open_browser and desktop:
        threading.Timer(0.7, webbrowser.open, [url]).start()
    server = uvicorn.Server(uvicorn.Config(create_app(shelf, port), log_level="warning", access_log=False))
    server.run(sockets=[listener])


def _pictures(slides: Path | None) -> Callable[[Bag], Picture | None]:
    """Finds the picture under a bag: its collage, or the slide of the same name."""

    def find(bag: Bag) -> Picture | None:
        from dasmil.cli.slide_ground import open_ground
        from dasmil.viewer.shelf import Picture

        found = open_ground(bag, slides)
        return None if found is None else Picture(*found)

    return find

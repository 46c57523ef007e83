"""dasmil view: look at bags, their instances and what these attend to, in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dasmil.runs import Origin, Seed
    from dasmil.types import Bag
    from dasmil.viewer.shelf import Entry, Picture, Shelf

app = App(name="view", help="Look at bags and what decided, in the browser.")


@app.default
def view(
    run: Path | None = None,
    /,
    *,
    model: Path | None = None,
    bags: Path | None = None,
    slides: Path | None = None,
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

        dasmil view --model runs/mine/seed-0/model.safetensors --bags bags/

    Parameters
    ----------
    run: Path
        Run directory written by dasmil train (or one fold of it).
    model: Path
        A model file, instead of a run; needs --bags.
    bags: Path
        Folder of feature files to show, with --model or instead of the bags of the run; of a run that was trained on a
        table of cells, another such table.
    slides: Path
        Folder with the slides; a slide belongs to the bag of the same name. Without it: a plain ground.
    seed: int
        Which seed of the run explains; default the first.
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
        shelf = _run_shelf(run, bags, seed, split, scale, mnist_dir, find_picture)
    else:
        assert model is not None
        assert bags is not None
        classes = _classes_beside(model)
        shelf = _folder_shelf(model, f"{model.name} on {bags.name}", bags, scale, find_picture, classes)
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


def _run_shelf(
    run: Path,
    bags: Path | None,
    seed: int | None,
    split: Sequence[str] | None,
    scale: dict[str, Any],
    mnist_dir: Path | None,
    find_picture: Callable[[Bag], Picture | None],
) -> Shelf:
    from dasmil.errors import InputError
    from dasmil.runs import Run
    from dasmil.viewer.shelf import Shelf

    stored = Run.read(run)
    if stored.folds:
        raise InputError(f"{run} holds {len(stored.folds)} folds, each with its own model: view {stored.folds[0].path}")
    seed = min(stored.seeds) if seed is None else seed
    if seed not in stored.seeds:
        raise InputError(f"{run} has no seed {seed}; it has {', '.join(map(str, stored.seeds))}")
    chosen, name = stored.seeds[seed], stored.model
    if bags is not None:
        title, classes = f"{name} on {bags.name}", stored.origin.get("classes")
        return _folder_shelf(chosen.model_file, title, bags, scale, find_picture, classes, stored.origin)
    entries = _run_entries(chosen, stored.origin, split, mnist_dir, find_picture)
    classes = stored.origin.get("classes")
    data = stored.origin.get("name") or Path(stored.origin.get("bags", "own bags")).name
    return Shelf(
        f"{name} on {data}", f"{run.name}, seed {seed}", chosen.model(), entries,
        tuple(map(str, classes)) if classes else None,
    )  # fmt: skip


def _run_entries(
    seed: Seed,
    data: Origin,
    split: Sequence[str] | None,
    mnist_dir: Path | None,
    find_picture: Callable[[Bag], Picture | None],
) -> list[Entry]:
    from dasmil.errors import unknown_name
    from dasmil.study.reading import run_loader
    from dasmil.viewer.shelf import Entry

    known = sorted(seed.scored, key=lambda s: (not s.startswith("test"), s))
    for name in split or ():
        if name not in known:
            raise unknown_name("split", name, known)
    load = run_loader(data, mnist_dir)
    return [
        Entry(
            bag_id=bag_id,
            load=lambda name=name, bag_id=bag_id: load(name, bag_id),
            picture=find_picture,
            label=int(found.labels[i]) if found.labels[i] >= 0 else None,
            prediction=int(found.predictions[i]),
            probability=float(found.probabilities[i].max() if found.probabilities.ndim > 1 else found.probabilities[i]),
            split=name,
            patient=found.patient_ids[i],
        )
        for name in split or known
        for found in (seed.predictions(name),)
        for i, bag_id in enumerate(found.bag_ids)
    ]


def _classes_beside(model: Path) -> Sequence[str] | None:
    """The class names of the run that a model file lies in, if it lies in one."""
    from dasmil.runs import origin_of

    return origin_of(model).get("classes")


def _folder_shelf(
    model: Path,
    title: str,
    bags: Path,
    scale: dict[str, Any],
    find_picture: Callable[[Bag], Picture | None],
    classes: Sequence[str] | None,
    data: Origin | None = None,
) -> Shelf:
    from dasmil.cli.training_display import say
    from dasmil.runs import load_model
    from dasmil.study.reading import unlabelled_bags
    from dasmil.study.spec import BagSpec
    from dasmil.viewer.shelf import Entry, Shelf

    found = unlabelled_bags(BagSpec(bags=bags, **scale), data, say)
    entries = [
        Entry(bag_id=bag.bag_id, load=lambda k=k: found[k], picture=find_picture, patient=bag.patient_id)
        for k, bag in enumerate(found.entries)
    ]
    return Shelf(title, str(bags), load_model(model), entries, tuple(map(str, classes)) if classes else None)

"""dasmil view: look at bags, their instances and what these attend to, in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="view", help="Show bags and what decided in the browser; list all runs of a folder.")


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
    per_patient: Annotated[bool, Parameter(negative="")] = False,
    slide_table: Path | None = None,
    mnist_dir: Path | None = None,
    port: int = 0,
    open_browser: Annotated[bool, Parameter(name="--open", negative="--no-open")] = True,
    allow_start: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Show bags and what decided in the browser.

    A page served on this machine only (127.0.0.1): the list of bags, the slide with its instances coloured by what they
    contributed, and, on a click, what an instance attends to at which distance. Ctrl-C ends it.

    Examples:

        dasmil view runs/mine --slides slides/

        dasmil view runs/                 all runs below a folder: scores, live curves, report and viewer of each

        dasmil view runs/mine --compare runs/other

        dasmil view --model runs/mine/seed-0/model.safetensors --bags bags/

    Parameters
    ----------
    run: Path
        Run folder of dasmil train (in a cross-validation each bag is explained by the fold that did not train on it),
        or a folder of runs: a page that lists them all.
    model: Path
        A model file, instead of a run; needs --bags.
    bags: Path
        Folder of feature files to show, with --model or instead of the bags of the run; of a run that was trained on a
        table of cells, another such table.
    slides: Path
        Folder with the slides; a slide belongs to the bag of the same name. Default: a plain background.
    compare: list[Path]
        Further runs (or model files) that can be chosen in the page, for example to stand beside the first.
    seed: int
        Seed that explains (default: the first). The page can show the others too.
    split: list[str]
        Sets of the run to list (default: all that it predicted, test sets first). Not with --bags.
    mpp: str
        Micrometres per level-0 pixel, where foreign feature files do not say.
    tile_um: float
        Edge of a tile in micrometres, where foreign feature files do not say.
    scale_table: Path
        CSV with slide and any of mpp, tile_um, for slides that differ.
    per_patient: bool
        With --bags: join the slides of a patient, each a section; so it is without being asked where the run was
        trained like this.
    slide_table: Path
        With --bags: CSV with slide and patient, where bag files do not name their patient. A patient of whom a slide
        has no file is shown without it and named.
    mnist_dir: Path
        Folder with the four MNIST idx files, for runs that were trained with them.
    port: int
        Port on 127.0.0.1; 0 takes a free one.
    open_browser: bool
        Open the page in the browser, where there is a desktop.
    allow_start: bool
        Of a folder of runs: let the page start the study files (.toml) below it, resume them and stop them. Without it
        the page only reads.
    """
    from dasmil.cli.display import say
    from dasmil.study.viewing import holds_runs
    from dasmil.study.viewing import view as serve

    of_runs = run is not None and model is None and bags is None and (allow_start or holds_runs(run))
    what = "run" if of_runs else "bag"

    def ready(address: str, count: int) -> None:
        print(f"{count:,} {what}{'' if count == 1 else 's'}. Ctrl-C ends the viewer. Open:\n{address}", flush=True)

    serve(
        run, model=model, bags=bags, slides=slides, compare=compare or (), seed=seed, split=split, mpp=mpp,
        tile_um=tile_um, scale_table=scale_table, per_patient=per_patient, slide_table=slide_table, mnist_dir=mnist_dir,
        port=port, open_browser=open_browser, allow_start=allow_start,
        ready=ready, note=say,
    )  # fmt: skip

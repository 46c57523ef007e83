"""`dasmil figure`: plots of a run as files for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="figure", help="Save plots of a run as SVG, PDF and PNG with their data.")


@app.default
def figure(
    run: Path,
    /,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    panels: str | None = None,
    bags: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    slides: Path | None = None,
    split: str | None = None,
    mnist_dir: Path | None = None,
) -> int:
    """Put panels of a run together as figure.svg, .pdf and .png (300 dpi), and save every plot with its data.

    Panels have letters, maps a scale bar and a colour bar. The folder plots/ holds every plot of the report as SVG and
    what it draws as CSV.

    Examples:

        dasmil figure runs/mine -o figures/ --panels roc,distance,maps --slides slides/

        dasmil figure runs/mine -o figures/ --panels maps --bags slide1 slide7

    Parameters
    ----------
    run
        Run directory of dasmil train.
    out
        Folder for the files.
    panels
        Of roc, confusion, calibration, decisions, distance, curves and maps, separated by commas; default
        roc,confusion,distance.
    bags
        Bags whose maps are drawn; default the surest that is right and the surest that is wrong.
    slides
        Folder with the slides, which then stand beside their maps.
    split
        Set of bags; default the first of the report.
    mnist_dir
        Folder with the four MNIST idx files, for runs that were trained with them.
    """
    from dasmil.cli.display import say
    from dasmil.study.figure import make_figure

    names = None if panels is None else [name for part in panels.split(",") if (name := part.strip())]
    files = make_figure(
        run, out, panels=names, bags=bags or (), slides=slides, split=split, mnist_dir=mnist_dir, note=say
    )
    plots = sum(file.parent.name == "plots" for file in files)
    for file in files:
        if file.parent.name != "plots":
            print(file)
    print(f"{out / 'plots'} ({plots // 2} plots as SVG, each with its data as CSV)")
    return 0

"""Figures of a run for a paper: its plots as files with their data, chosen panels and heat-maps in one figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dasmil.attribution.ground import layout_of
from dasmil.errors import InputError, unknown_name
from dasmil.report import page_of
from dasmil.report.decisions import decisions_section
from dasmil.report.explanation.heatmap import ground_figure, map_figure
from dasmil.report.page import figures_kept, picture
from dasmil.report.pictures import (
    calibration_picture,
    confusion_picture,
    distance_pictures,
    learning_pictures,
    roc_picture,
)
from dasmil.report.saved import FORMATS, compose, save_figure, save_plots
from dasmil.report.style import ACCENT
from dasmil.runs import Run
from dasmil.study.explaining import explain_bag, make_folder
from dasmil.study.ground import ground_of, open_ground
from dasmil.study.maps import sureness
from dasmil.study.maps import words as bag_words
from dasmil.study.notes import Note, silent
from dasmil.types import Bag, Explanation

PANELS: dict[str, Callable[[Run, str], Any]] = {
    "roc": lambda run, split: roc_picture(run, split),
    "confusion": lambda run, split: confusion_picture(run, split),
    "calibration": lambda run, split: calibration_picture(run, split),
    "decisions": lambda run, split: decisions_section(run, split),
    "distance": lambda run, _split: distance_pictures(run),
    "curves": lambda run, _split: learning_pictures([(run, ACCENT)]),
}
MAPS = "maps"
DEFAULT = ("roc", "confusion", "distance")
OF_CLASSES = ("roc", "confusion", "calibration", "decisions")


def make_figure(
    run: str | Path,
    out: str | Path,
    *,
    panels: Sequence[str] | None = None,
    bags: Sequence[str] = (),
    slides: str | Path | None = None,
    split: str | None = None,
    mnist_dir: Path | None = None,
    note: Note = silent,
) -> list[Path]:
    """Write figure.svg, .pdf and .png (300 dpi) with the chosen panels, as `dasmil figure`; returns the files.

    Example: ``dasmil.make_figure("runs/mine", "figures", panels=["roc", "maps"], slides="slides/")``

    panels: of roc, confusion, calibration, decisions, distance, curves and maps. bags: whose maps are drawn; default
    the surest bag that is right and the surest that is wrong. slides: the folder with the pictures under the maps,
    which then stand beside them. Every plot of the report is written to ``out/plots`` as SVG, with its data as CSV.
    """
    stored, folder = Run.read(run), make_folder(out)
    names = list(panels if panels is not None else _default(stored, bags))
    for name in names:
        if name not in (*PANELS, MAPS):
            raise unknown_name("panel", name, [*PANELS, MAPS])
        if stored.task is not None and name in OF_CLASSES:
            raise InputError(f"panel {name} is of classes, and this run has the task {stored.task.kind}")
    where = split or stored.splits[0]
    if where not in stored.splits:
        raise unknown_name("set", where, stored.splits)
    maps = _maps(stored, where, bags, slides, mnist_dir, note) if MAPS in names else []

    def make() -> None:
        for name in names:
            if name == MAPS:
                for one in maps:
                    one()
            else:
                PANELS[name](stored, where)

    figure, told = compose(make)
    files = save_figure(figure, folder / "figure", FORMATS)
    for line in told:
        note(line)
    plots = make_folder(folder / "plots")
    return [*files, *save_plots(lambda: page_of(stored), plots)]


def plot_roc(run: Run | str | Path, split: str | None = None) -> Figure:
    """The ROC curve of a run as a matplotlib figure, with its 95 % band.

    Example: ``dasmil.plot_roc("runs/mine").savefig("roc.pdf")``
    """
    stored = run if isinstance(run, Run) else Run.read(run)
    if stored.task is not None:
        raise InputError(f"a ROC curve is of classes, and this run has the task {stored.task.kind}")
    with figures_kept() as kept:
        roc_picture(stored, split or stored.splits[0])
    if not kept:
        raise InputError(f"{stored.path} has no ROC curve: a class is missing among the bags")
    return kept[0][1]


def plot_map(
    bag: Bag, explanation: Explanation, score: str = "contribution", slide: str | Path | None = None
) -> Figure:
    """The map of a score as a matplotlib figure with scale bar and colour bar; slide: the picture under it.

    Example: ``dasmil.plot_map(bag, dasmil.explain(model, bag)).savefig("map.pdf")``
    """
    if score not in explanation.scores:
        raise unknown_name("score", score, explanation.scores)
    ground = ground_of(bag, None if slide is None else Path(slide))
    values = explanation.scores[score].double().cpu().numpy()
    return map_figure(layout_of(bag, ground), values, score, ground)


def _default(run: Run, bags: Sequence[str]) -> list[str]:
    """What is drawn where nothing was chosen."""
    names = list[str](DEFAULT if run.task is None else ("distance", "curves"))
    return [*names, MAPS] if bags else names


def _maps(
    run: Run, split: str, bags: Sequence[str], slides: str | Path | None, mnist_dir: Path | None, note: Note
) -> list[Callable[[], Any]]:
    """Makers of the maps of bags, each beside its slide where there is one."""
    makers: list[Callable[[], Any]] = []
    for name, words in _chosen(run, split, bags):
        answer = explain_bag(run.path, name, mnist_dir=mnist_dir, note=note)
        found = open_ground(answer.bag, None if slides is None else Path(slides))
        ground = None if found is None else found[0]
        layout = layout_of(answer.bag, ground)
        values = answer.explanation.scores["contribution"].double().cpu().numpy()
        if ground is not None:
            makers.append(lambda g=ground, at=layout, n=name: picture(ground_figure(at, g, n), f"Slide of {n}"))
        makers.append(
            lambda g=ground, at=layout, v=values, n=name, w=words, m=answer.meaning: picture(
                map_figure(at, v, "contribution", g, meaning=m, title=w), f"Contributions in {n}, {w}"
            )
        )
    return makers


def _chosen(run: Run, split: str, bags: Sequence[str]) -> list[tuple[str, str]]:
    """Names of bags and what the run said of each; without names the surest right and the surest wrong one."""
    found = run.ensemble(split) if run.task is None else None
    if found is None:
        if not bags:
            raise InputError("name the bags whose maps are drawn: --bags NAME ...")
        return [(name, name) for name in bags]
    sure, right = sureness(found), found.predictions == found.labels
    place = {name: k for k, name in enumerate(found.bag_ids)}
    if bags:
        return [(name, bag_words(run, found, place[name]) if name in place else name) for name in bags]
    positive = found.predictions > 0
    picks = [_surest(sure, right & positive), _surest(sure, ~right & (found.labels >= 0))]
    return [(found.bag_ids[k], bag_words(run, found, k)) for k in picks if k is not None]


def _surest(sure: np.ndarray, among: np.ndarray) -> int | None:
    places = np.flatnonzero(among)
    return int(places[sure[places].argmax()]) if len(places) else None

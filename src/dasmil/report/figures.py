"""Figures of runs and results, in the house style; each function returns a matplotlib figure for to_svg or save_png."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from dasmil.report.style import ACCENT, FAINT, FONT, GREY, GROUND, INK, LINE, ORANGE, look, new_figure, start_figure
from dasmil.stats import Roc, wilson


@dataclass(frozen=True)
class Line:
    """One curve of one run: x, y, and whether the run did not fit."""

    x: Sequence[float] | NDArray[np.float64]
    y: Sequence[float] | NDArray[np.float64]
    stuck: bool = False
    name: str = ""


@dataclass(frozen=True)
class Series:
    """The curves of all runs of one model, drawn in one colour under one label."""

    label: str
    lines: Sequence[Line]
    colour: str = ACCENT


@dataclass(frozen=True)
class Panel:
    """One small diagram of learning curves."""

    title: str
    ylabel: str
    series: Sequence[Series]
    floor: float | None = None
    ceiling: float | None = None
    truth: float | None = None
    truth_label: str = ""


def learning_curve(panel: Panel, width: float = 310, height: float = 230) -> Figure:
    """A small diagram: a thin line for each seed, dashed where it did not fit, labelled directly."""
    with look():
        figure, (axis,) = new_figure(width, height)
        _learning_panel(axis, panel)
    return figure


def _learning_panel(axis: Axes, panel: Panel) -> None:
    axis.set_title(panel.title)
    axis.set_xlabel("epoch")
    axis.set_ylabel(panel.ylabel)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    labelled = len(panel.series) > 1
    ends: list[tuple[float, str, str]] = []
    for series in panel.series:
        none_fitted = all(line.stuck for line in series.lines)
        for line in series.lines:
            dashed = line.stuck and not none_fitted
            axis.plot(line.x, line.y, color=series.colour, alpha=0.9 if len(series.lines) < 4 else 0.65,
                      linestyle=(0, (4, 2)) if dashed else "-", linewidth=1.1)  # fmt: skip
            if dashed and len(line.y):
                ends.append((float(line.y[-1]), f"{line.name} not fitted", series.colour))
        finals = [float(line.y[-1]) for line in series.lines if len(line.y) and np.isfinite(line.y[-1])]
        if labelled and finals:
            ends.append((float(np.mean(finals)), series.label, series.colour))
    if panel.truth is not None:
        axis.axhline(panel.truth, color=INK, linewidth=0.8)
        axis.annotate(panel.truth_label, (0.99, panel.truth), xycoords=("axes fraction", "data"), xytext=(0, -4),
                      textcoords="offset points", ha="right", va="top", fontsize=FONT - 1)  # fmt: skip
    low, high = axis.get_ylim()
    axis.set_ylim(low if panel.floor is None else panel.floor, high if panel.ceiling is None else panel.ceiling)
    _end_labels(axis, ends)


def _end_labels(axis: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Labels beside the right ends of the curves, moved apart so that they never overlap."""
    if not ends:
        return
    low, high = axis.get_ylim()
    ends = [end for end in sorted(ends) if np.isfinite(end[0])]
    gap = 0.075
    places = [(value - low) / (high - low) for value, _, _ in ends]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    overflow = max(0.0, places[-1] - 0.98) if places else 0.0
    for place, (_, text, colour) in zip(places, ends):
        axis.annotate(text, (1, place - overflow), xycoords="axes fraction", xytext=(5, 0), textcoords="offset points",
                      va="center", color=colour, fontsize=FONT - 1, annotation_clip=False)  # fmt: skip


def roc(curves: Sequence[tuple[str, Roc, str]]) -> Figure:
    """ROC curves (label, curve, colour): the mean over seeds with its 95 % band; of a single model also its seeds."""
    with look():
        figure, (axis,) = new_figure(318, 320)
        axis.set_aspect("equal")
        axis.plot([0, 1], [0, 1], color=LINE, linewidth=0.8)
        for _, curve, colour in curves:
            if curve.low is not None and curve.high is not None:
                axis.fill_between(curve.fpr, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0)
            if len(curves) == 1:
                for seed in curve.seeds:
                    axis.plot(curve.fpr, seed, color=colour, alpha=0.3, linewidth=0.6)
            axis.plot(curve.fpr, curve.mean, color=colour, linewidth=1.5)
        for place, (label, _, colour) in enumerate(reversed(curves)):
            axis.text(0.98, 0.04 + 0.075 * place, label, color=colour, ha="right", fontsize=FONT - 1)
        axis.set(xlim=(-0.01, 1), ylim=(0, 1.01), xlabel="false positive rate", ylabel="true positive rate")
        axis.set_title("ROC, mean over seeds, 95 % band" if any(len(c.seeds) > 1 for _, c, _ in curves) else "ROC")
    return figure


def confusion(matrix: ArrayLike, names: Sequence[str], title: str = "Confusion matrix") -> Figure:
    """Counts [truth, prediction] with the share of each true class; diagonal in blue, errors in orange."""
    counts = np.asarray(matrix)
    k = len(names)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    cell = 92 if k == 2 else max(46, 300 // k)
    with look():
        longest = max(len(name) for name in names)
        figure, (axis,) = new_figure(k * cell + 70 + 6 * longest, k * cell + 82)
        for i in range(k):
            for j in range(k):
                colour = ACCENT if i == j else ORANGE
                axis.add_patch(_cell(j, i, colour, 0.06 + 0.6 * share[i, j]))
                axis.text(
                    j, i - 0.08, f"{counts[i, j]:,}", ha="center", va="center", fontsize=FONT + 3 if k < 4 else FONT
                )
                axis.text(j, i + 0.22, f"{100 * share[i, j]:.0f} %", ha="center", va="center", fontsize=FONT - 2)
        axis.set(xlim=(-0.5, k - 0.5), ylim=(k - 0.5, -0.5), aspect="equal", xlabel="predicted", ylabel="true")
        axis.set_xticks(range(k), names)
        axis.set_yticks(range(k), names, rotation=90, va="center")
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        axis.set_title(title)
    return figure


def _cell(x: float, y: float, colour: str, alpha: float) -> Rectangle:
    return Rectangle((x - 0.49, y - 0.49), 0.98, 0.98, facecolor=colour, alpha=alpha, linewidth=0)


def calibration(bins: Sequence[Mapping[str, Any]]) -> Figure:
    """Observed against predicted frequency, with 95 % (Wilson) intervals; below, how many bags each bin holds.

    The bags of a patient count as one in the intervals.
    """
    with look():
        figure = start_figure(318, 320)
        axis, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [4, 1]})
        axis.plot([0, 1], [0, 1], color=LINE, linewidth=0.8)
        predicted = [b["predicted"] for b in bins]
        observed = np.array([b["observed"] for b in bins])
        low, high = np.array([wilson(b["observed"], int(b.get("patients", b["n"]))) for b in bins]).reshape(-1, 2).T
        axis.errorbar(predicted, observed, yerr=[observed - low, high - observed], fmt="o", color=ACCENT, markersize=4,
                      linewidth=0.9)  # fmt: skip
        axis.plot(predicted, observed, color=ACCENT, linewidth=0.8, alpha=0.6)
        axis.set(ylim=(-0.02, 1.02), ylabel="observed frequency")
        axis.set_title("Calibration, 95 % intervals")
        below.bar([(b["from"] + b["to"]) / 2 for b in bins], [b["n"] for b in bins], width=0.092, color=GREY)
        below.set(xlim=(-0.02, 1.02), xlabel="predicted probability", ylabel="bags")
        below.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    return figure


@dataclass(frozen=True)
class Score:
    """One row of a score diagram: a mean, its interval, the single seeds, and a value to compare with."""

    label: str
    mean: float
    interval: tuple[float, float] | None = None
    seeds: Sequence[float] = ()
    mark: float | None = None
    colour: str = ACCENT


def scores(rows: Sequence[Score], xlabel: str, mark: str = "paper") -> Figure:
    """Mean with interval, seeds as rings, a thin tick for the value that `mark` names; a row for each model or fold."""
    with look():
        figure, (axis,) = new_figure(470, 62 + 34 * len(rows))
        for y, row in enumerate(rows):
            if row.interval is not None:
                axis.plot(row.interval, [y, y], color=row.colour, linewidth=5, alpha=0.28, solid_capstyle="butt")
            axis.scatter(row.seeds, [y] * len(row.seeds), s=13, facecolor="none", edgecolor=row.colour, linewidth=0.7)
            axis.plot([row.mean], [y], "o", color=row.colour, markersize=6)
            if row.mark is not None:
                axis.plot([row.mark] * 2, [y - 0.3, y + 0.3], color=INK, linewidth=1)
        axis.set_yticks(range(len(rows)), [row.label for row in rows])
        axis.set(ylim=(len(rows) - 0.5, -0.5), xlabel=xlabel)
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
        axis.grid(axis="x", color=LINE, linewidth=0.6)
        axis.set_axisbelow(True)
        if any(row.mark is not None for row in rows):
            axis.annotate(f"| {mark}", (1, 1), xycoords="axes fraction", ha="right", va="bottom", fontsize=FONT - 1)
    return figure


__all__ = [
    "FAINT", "GROUND", "Line", "Panel", "Score", "Series",
    "calibration", "confusion", "learning_curve", "roc", "scores",
]  # fmt: skip

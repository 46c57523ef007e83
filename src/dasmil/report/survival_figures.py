"""Figures of survival: curves of risk groups with numbers at risk, and calibration at times; arrays in, figure out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dasmil.report.style import ACCENT, FONT, GREY, LINE, ORANGE, look, new_figure, start_figure
from dasmil.stats import FollowUp, KaplanMeier, kaplan_meier, log_rank


@dataclass(frozen=True, eq=False)
class RiskGroup:
    """Patients of one group of predicted risk, in the order low to high."""

    label: str
    follow: FollowUp


def survival_curves(groups: Sequence[RiskGroup], unit: str, title: str = "Survival by predicted risk") -> Figure:
    """Kaplan-Meier curves with 95 % bands and censorings as ticks, the log-rank p, and below the numbers at risk.

    unit: of the times, for the axis.
    """
    colours = group_colours(len(groups))
    end = max(float(group.follow.times.max()) for group in groups)
    with look():
        figure = start_figure(470, 300 + 17 * len(groups))
        axis, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [230, 17 * (len(groups) + 1)]})
        for group, colour in zip(groups, colours, strict=True):
            _curve(axis, group, kaplan_meier(group.follow), colour)
        axis.set(xlim=(0, end), ylim=(0, 1.02), ylabel="share without the event")
        axis.set_title(f"{title}, {log_rank_text(groups)}")
        axis.xaxis.set_major_locator(MaxNLocator(6))
        axis.set_xlabel(f"time ({unit})")
        axis.tick_params(labelbottom=True)
        _group_labels(axis, groups, colours)
        ticks = [t for t in axis.get_xticks() if 0 <= t <= end]
        _numbers_at_risk(below, groups, colours, ticks)
    return figure


def group_colours(groups: int) -> list[str]:
    """Low risk blue, high risk orange, those between in grey."""
    if groups == 1:
        return [ACCENT]
    return [ACCENT, *[GREY] * (groups - 2), ORANGE]


def log_rank_text(groups: Sequence[RiskGroup]) -> str:
    """ "log-rank p = 0.013", or why there is none."""
    if len(groups) < 2:
        return "one group only: no log-rank test"
    times = np.concatenate([group.follow.times for group in groups])
    events = np.concatenate([group.follow.events for group in groups])
    member = np.repeat(np.arange(len(groups)), [len(group.follow) for group in groups])
    p = log_rank(FollowUp(times, events), member)[1]
    if math.isnan(p):
        return "no log-rank test: too few events"
    return "log-rank p < 0.001" if p < 0.001 else f"log-rank p = {p:.3f}"


def _curve(axis: Axes, group: RiskGroup, curve: KaplanMeier, colour: str) -> None:
    x = np.concatenate([[0.0], curve.times])
    y, low, high = (np.concatenate([[1.0], values]) for values in (curve.survival, curve.low, curve.high))
    axis.fill_between(x, low, high, step="post", color=colour, alpha=0.14, linewidth=0)
    axis.step(x, y, where="post", color=colour, linewidth=1.5)
    lost = group.follow.times[~group.follow.events]
    axis.plot(lost, curve.at(lost), "|", color=colour, markersize=6, markeredgewidth=0.8)


def _group_labels(axis: Axes, groups: Sequence[RiskGroup], colours: Sequence[str]) -> None:
    """Names beside the curves, low risk on top, where its curve is expected."""
    for place, (group, colour) in enumerate(zip(groups, colours, strict=True)):
        text = f"{group.label}\n{len(group.follow)}, {int(group.follow.events.sum())} with event"
        axis.annotate(text, (1, 0.93 - 0.16 * place), xycoords="axes fraction", xytext=(6, 0), va="center",
                      textcoords="offset points", color=colour, fontsize=FONT - 1, annotation_clip=False)  # fmt: skip


def _numbers_at_risk(axis: Axes, groups: Sequence[RiskGroup], colours: Sequence[str], ticks: Sequence[float]) -> None:
    axis.set_ylim(len(groups) + 0.2, -0.9)
    axis.set_axis_off()
    axis.annotate("Number at risk", (0, -0.6), xycoords=("axes fraction", "data"), fontsize=FONT - 1, va="center")
    for row, (group, colour) in enumerate(zip(groups, colours, strict=True)):
        for tick, number in zip(ticks, kaplan_meier(group.follow).numbers_at_risk(ticks), strict=True):
            axis.text(tick, row + 0.4, f"{number}", color=colour, ha="center", va="center", fontsize=FONT - 1)


def survival_calibration(groups: Sequence[Mapping[str, Any]], time: float, unit: str) -> Figure:
    """Observed against predicted risk up to a time, with 95 % intervals; groups as stats.calibration_at gives them.

    Groups that were not watched until the time are left out and counted in the title.
    """
    known = [group for group in groups if math.isfinite(group["observed"])]
    missing = len(groups) - len(known)
    with look():
        figure, (axis,) = new_figure(290, 300)
        axis.plot([0, 1], [0, 1], color=LINE, linewidth=0.8)
        x, y = (np.array([group[name] for group in known]) for name in ("predicted", "observed"))
        low, high = np.array([group["interval"] for group in known]).reshape(-1, 2).T
        axis.errorbar(x, y, yerr=[np.maximum(y - low, 0), np.maximum(high - y, 0)], fmt="o", color=ACCENT,
                      markersize=4, linewidth=0.9)  # fmt: skip
        axis.plot(x, y, color=ACCENT, linewidth=0.8, alpha=0.6)
        axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
        axis.set(xlabel="predicted risk", ylabel="observed risk")
        axis.set_title(f"Up to {time:g} {unit}" + (f" ({missing} not watched so long)" if missing else ""))
    return figure

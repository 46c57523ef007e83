"""phi(delta), what a model learned about distance: the one figure of it, for reports, explanations and files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dasmil.attribution.distance import LearnedDistance, learned_distances
from dasmil.models.base import MILModel
from dasmil.ops.das_attention.phi import PHI
from dasmil.report.style import ACCENT, FAINT, FONT, GREY, INK, LINE, ORANGE, look, new_figure
from dasmil.types import Pair
from dasmil.vocabulary import UNIT_SYMBOL

HEAD_COLOURS = (ACCENT, ORANGE, GREY, INK, FAINT)
SHOWN_PAIRS = 30


@dataclass(frozen=True)
class Phi:
    """One learned interpolation function: theta and beta in units of `scale`, lengths in `unit`."""

    theta: float
    beta: float
    scale: float
    unit: str
    kind: str = "sigmoid"
    head: int = 0
    stuck: bool = False

    @property
    def midpoint(self) -> float:
        return self.theta * self.scale

    def __call__(self, distances: np.ndarray) -> np.ndarray:
        """phi at distances in the unit."""
        return PHI[self.kind](torch.from_numpy((distances / self.scale - self.theta) * self.beta)).numpy()


@dataclass(frozen=True)
class Truth:
    """The distance that decides in truth, where it is known."""

    distance: float
    farther: bool = False


def phis(models: Sequence[MILModel], layer: int | None = None) -> list[Phi]:
    """The functions of models (seeds of one configuration), of all layers or of one."""
    found = [
        Phi(row["theta"], row["beta"], model.distance_scale, model.unit, str(model.config.get("phi", "sigmoid")),
            row["head"])
        for model in models
        for row in model.learned_distances()
        if layer in (None, row["layer"])
    ]  # fmt: skip
    if not found:
        learned_distances(models)  # says which models have one
    return found


def phi_figure(
    functions: Sequence[Phi],
    reach: float | None = None,
    truth: Truth | None = None,
    pairs: Sequence[Pair] = (),
    doubtful: bool = False,
) -> Figure:
    """phi(delta) of every seed and head over the distance, with the true threshold where it is known.

    reach: of the axis, by default as far as phi changes and pairs lie; pairs: dots at their distances, sized by
    contribution; doubtful: the model is no better than chance, which the title says in place of a learned distance.
    """
    unit = UNIT_SYMBOL.get(functions[0].unit, functions[0].unit)
    shown = [p for p in pairs if p.distance is not None and p.i != p.j][:SHOWN_PAIRS]
    reach = reach or _reach(functions, truth, shown)
    x = np.linspace(0, reach, 400)
    with look():
        figure, (axis,) = new_figure(480, 320)
        if truth is not None:
            _draw_truth(axis, truth, reach, unit, rises=sum(function.beta for function in functions) >= 0)
        for function in functions:
            axis.plot(x, function(x), color=HEAD_COLOURS[function.head % len(HEAD_COLOURS)], linewidth=1.3,
                      alpha=0.9 if len(functions) < 3 else 0.65,
                      linestyle=(0, (4, 2)) if function.stuck else "-")  # fmt: skip
        if not doubtful:
            _name_midpoints(axis, functions, reach, unit)
        _draw_pairs(axis, shown)
        axis.set(xlim=(0, reach), xlabel=f"distance δ ({unit})", ylabel="φ(δ)")
        low, high = axis.get_ylim()
        axis.set_ylim(min(low, -0.03), max(high, 1.03))
        title = "φ(δ) of a model no better than chance" if doubtful else "Learned φ(δ)"
        if shown:
            title += f", the {len(shown)} strongest pairs (orange: for, blue: against)"
        axis.set_title(title, fontsize=FONT - 1 if shown else FONT)
    return figure


def _reach(functions: Sequence[Phi], truth: Truth | None, pairs: Sequence[Pair]) -> float:
    far = [f.midpoint + 2 * math.log(9) * f.scale / abs(f.beta) for f in functions if abs(f.beta) > 1e-9]
    far += [p.distance or 0.0 for p in pairs] + [truth.distance if truth else 0.0, 1e-9]
    return 1.1 * max(far)


def _draw_truth(axis: Axes, truth: Truth, reach: float, unit: str, rises: bool) -> None:
    span = (truth.distance, reach) if truth.farther else (0, truth.distance)
    axis.axvspan(*span, color=ORANGE, alpha=0.09, linewidth=0)
    axis.axvline(truth.distance, color=INK, linewidth=0.9)
    # The label goes where the curves are not.
    axis.annotate(f"true threshold\n{truth.distance:g} {unit}", (truth.distance, 0.98 if rises else 0.02),
                  xytext=(-5, 0), textcoords="offset points", va="top" if rises else "bottom",
                  ha="right", fontsize=FONT - 1)  # fmt: skip


def _name_midpoints(axis: Axes, functions: Sequence[Phi], reach: float, unit: str) -> None:
    """Where each head is halfway, mean and spread over seeds that fitted (over all, if none did)."""
    heads = sorted({function.head for function in functions})
    for head in heads:
        mine = [f for f in functions if f.head == head]
        mean, sd = LearnedDistance.spread([f.midpoint for f in mine if not f.stuck] or [f.midpoint for f in mine])
        places = 0 if abs(mean) >= 100 else 1
        text = f"{mean:,.{places}f}{'' if sd is None else f' ± {sd:,.{places}f}'} {unit}"
        if 0 <= mean <= reach:
            axis.axvline(mean, color=LINE, linewidth=0.8, zorder=0)
        left = mean > 0.6 * reach
        axis.annotate(f"head {head}: {text}" if len(heads) > 1 else f"halfway {text}",
                      (0.02 if left else 0.98, 0.55 - 0.07 * head), xycoords="axes fraction",
                      ha="left" if left else "right", color=HEAD_COLOURS[head % len(HEAD_COLOURS)],
                      fontsize=FONT - 1)  # fmt: skip


def _draw_pairs(axis: Axes, pairs: Sequence[Pair]) -> None:
    if not pairs:
        return
    largest = max(abs(p.contribution) for p in pairs)
    axis.scatter(
        [p.distance for p in pairs],  # pyright: ignore[reportArgumentType]
        [p.phi if p.phi is not None else 0.0 for p in pairs],
        s=[8 + 70 * abs(p.contribution) / largest for p in pairs],
        c=[ORANGE if p.contribution > 0 else ACCENT for p in pairs],
        edgecolor="white",
        linewidth=0.6,
        zorder=3,
    )

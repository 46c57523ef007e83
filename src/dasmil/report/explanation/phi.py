"""phi(delta) drawn over the distance, with the pairs that decided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
from matplotlib.figure import Figure

from dasmil.attribution.distance import LearnedDistance, learned_distances, phi_values
from dasmil.attribution.ground import UNIT_SYMBOL
from dasmil.models.base import MILModel
from dasmil.report.style import ACCENT, FAINT, FONT, GREY, INK, LINE, ORANGE, look, new_figure
from dasmil.types import Explanation, Unit

HEAD_COLOURS = (ACCENT, ORANGE, GREY, INK, FAINT)


def phi_figure(
    models: Sequence[MILModel],
    *,
    reach: float | None = None,
    truth: float | None = None,
    explanation: Explanation | None = None,
    layer: int | None = None,
) -> Figure:
    """phi(delta) of every seed and head, with the strongest pairs of an explanation as dots sized by contribution."""
    rows = [(model, row) for model in models for row in model.learned_distances() if layer in (None, row["layer"])]
    if not rows:
        learned_distances(models)  # raises
    unit = UNIT_SYMBOL[cast(Unit, rows[0][0].unit)]
    pairs = [] if explanation is None else [p for p in explanation.pairs if p.distance is not None and p.i != p.j][:30]
    if reach is None:
        far = [float(row["midpoint"] + row["width"]) for _, row in rows if math.isfinite(row["width"])]
        far += [p.distance or 0.0 for p in pairs] + [truth or 0.0, 1e-9]
        reach = 1.1 * max(far)
    x = np.linspace(0, reach, 500)
    several_heads = max(row["head"] for _, row in rows) > 0
    with look():
        figure, (axis,) = new_figure(460, 320)
        for model, row in rows:
            colour = HEAD_COLOURS[row["head"] % len(HEAD_COLOURS)]
            y = phi_values(row, model.distance_scale, str(model.config.get("phi", "sigmoid")), x)
            axis.plot(x, y, color=colour, alpha=0.9 if len(models) == 1 else 0.6, linewidth=1.4)
        for head in sorted({row["head"] for _, row in rows}):
            mine = [row["midpoint"] for _, row in rows if row["head"] == head]
            mean, sd = LearnedDistance.spread(mine)
            places = 0 if mean >= 100 else 1
            text = f"{mean:,.{places}f}{'' if sd is None else f' ± {sd:,.{places}f}'} {unit}"
            if 0 <= mean <= reach:
                axis.axvline(mean, color=LINE, linewidth=0.8, zorder=0)
            axis.annotate(f"head {head}: {text}" if several_heads else f"midpoint {text}", (0.98, 0.5 - 0.07 * head),
                          xycoords="axes fraction", ha="right", color=HEAD_COLOURS[head % len(HEAD_COLOURS)],
                          fontsize=FONT - 1)  # fmt: skip
        if truth is not None:
            axis.axvline(truth, color=INK, linewidth=0.9)
            axis.annotate(f"true {truth:g} {unit}", (truth, 0.0), xytext=(4, 6), textcoords="offset points",
                          fontsize=FONT - 1)  # fmt: skip
        if pairs:
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
        axis.set(xlim=(0, reach), xlabel=f"distance δ ({unit})", ylabel="φ(δ)")
        title = "Learned φ(δ)"
        if pairs:
            title += f", the {len(pairs)} strongest pairs (orange: for, blue: against)"
        elif len(models) > 1:
            title += f", {len(models)} seeds"
        axis.set_title(title, fontsize=FONT - 1)
    return figure

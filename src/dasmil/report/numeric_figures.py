"""Figures of predicted numbers: scatter with the line of identity, and Bland-Altman; arrays in, figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from dasmil.report.style import ACCENT, FAINT, FONT, INK, LINE, look, new_figure
from dasmil.stats import bland_altman


def scatter(truth: ArrayLike, predicted: ArrayLike, name: str, note: str = "") -> Figure:
    """Predicted against true values on equal axes, with the line on which they are the same.

    name: of the target with its unit, for both axes; note: for example "R2 0.81 (0.75-0.86)".
    """
    y, p = np.asarray(truth, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    low, high = _span(np.concatenate([y, p]))
    with look():
        figure, (axis,) = new_figure(318, 320)
        axis.plot([low, high], [low, high], color=FAINT, linewidth=0.8)
        axis.scatter(y, p, s=14, color=ACCENT, alpha=_alpha(len(y)), linewidth=0)
        axis.set(xlim=(low, high), ylim=(low, high), aspect="equal", xlabel=f"true {name}", ylabel=f"predicted {name}")
        axis.set_title("Predicted and true")
        if note:
            axis.text(0.98, 0.04, note, transform=axis.transAxes, ha="right", fontsize=FONT - 1)
    return figure


def bland_altman_figure(
    truth: ArrayLike,
    predicted: ArrayLike,
    name: str,
    intervals: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """Difference of prediction and truth against their mean, with its mean (bias) and the limits that hold 95 %.

    intervals: of bias, lower and upper (stats.summarise_set of a numeric set has them), drawn as bands.
    """
    y, p = np.asarray(truth, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    found = {key: float(value[0]) for key, value in bland_altman(y, p).items()}
    texts = {"bias": "bias", "lower": "lower limit", "upper": "upper limit"}
    with look():
        figure, (axis,) = new_figure(420, 320)
        axis.axhline(0, color=LINE, linewidth=0.8)
        axis.scatter((y + p) / 2, p - y, s=14, color=ACCENT, alpha=_alpha(len(y)), linewidth=0)
        for key, value in found.items():
            if not np.isfinite(value):
                continue
            ends = (intervals or {}).get(key)
            if ends is not None and np.isfinite(np.asarray(ends, dtype=np.float64)).all():
                axis.axhspan(*ends, color=INK, alpha=0.07, linewidth=0)
            axis.axhline(value, color=INK, linewidth=0.9, linestyle="-" if key == "bias" else (0, (4, 3)))
            axis.annotate(
                f"{texts[key]}\n{value:+.3g}", (1, value), xycoords=("axes fraction", "data"), xytext=(5, 0),
                textcoords="offset points", va="center", fontsize=FONT - 1, annotation_clip=False,
            )  # fmt: skip
        axis.set(xlabel=f"mean of true and predicted {name}", ylabel="predicted - true")
        axis.set_title("Agreement (Bland-Altman)")
    return figure


def _span(values: np.ndarray) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    margin = 0.04 * (high - low) or 1.0
    return low - margin, high + margin


def _alpha(n: int) -> float:
    return 0.75 if n <= 300 else 0.35

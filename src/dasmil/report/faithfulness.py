"""The page of flipping curves: what happens to the logit when instances are removed in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from dasmil.attribution.faithfulness import (
    ATTENTION,
    HIGHEST,
    LOWEST,
    RANDOM,
    REMOVED,
    Faithfulness,
    FlippingCurves,
)
from dasmil.report.page import Cell, Column, Page, Section, Table, picture, write_page
from dasmil.report.style import ACCENT, FAINT, GREY, LINE, ORANGE, look, new_figure
from dasmil.report.words import decimal, interval_text, plural
from dasmil.runs import Run

COLOURS = {HIGHEST: ORANGE, LOWEST: ACCENT, ATTENTION: FAINT, RANDOM: GREY}


def write_faithfulness_page(
    path: Path, run: Run, curves: Sequence[FlippingCurves], cohort: Sequence[Faithfulness], held_out: bool
) -> Path:
    """Write the page: one sentence, the curves and a table of the cohort."""
    first = next(one for one in cohort if one.order == HIGHEST)
    rows = [[one.order, Cell(decimal(one.gap), interval_text([one.low, one.high]))] for one in cohort]
    own = [[one.bag_id, f"{one.instances:,}", decimal(one.logit), decimal(one.gap(HIGHEST))] for one in curves]
    head = [Column("Bag"), Column("Instances", True), Column("Logit", True), Column("Gap of highest first", True)]
    which = "held out from training" if held_out else "that the model was trained on: the run has no others"
    page = Page(
        title=f"Faithfulness of {run.path.name}",
        kicker="dasmil explain --faithfulness",
        lead=verdict_text(first),
        remarks=[
            f"{plural(len(curves), 'bag')} {which}. Instances are removed in several orders, and the model scores what "
            "is left each time. Faithful contributions lower the logit fast when the highest go first, and raise it "
            "when the lowest go first.",
        ],
        sections=[
            Section("Logit while instances are removed", pictures=[picture(_figure(curves), "Flipping curves")]),
            Section(
                "Gap to random removal",
                text=["Mean over shares removed and bags, in units of the logit; 95 % interval over patients."],
                tables=[Table([Column("Order of removal"), Column("Gap", True)], rows), Table(head, own)],
            ),
        ],
    )
    return write_page(page, path)


def verdict_text(found: Faithfulness) -> str:
    """Whether removing the highest contributions lowers the logit more than chance, in one sentence."""
    figure = f"{found.gap:+.3f} logits"
    if not np.isfinite(found.low):
        return f"Removing the highest contributions first differs from random removal by {figure}; one patient only."
    figure += f" (95 % interval {found.low:+.3f} to {found.high:+.3f})"
    if found.low > 0:
        return f"Contributions are faithful: removing the highest first lowers the logit more than chance, by {figure}."
    if found.high < 0:
        return f"Contributions are not faithful: random removal lowers the logit more, by {figure}."
    return f"Contributions are no more faithful than chance on these bags: {figure}."


def _figure(curves: Sequence[FlippingCurves]) -> Figure:
    """Mean change of the logit against the share removed, a line for each order that all bags have."""
    with look():
        figure, (axis,) = new_figure(420, 280)
        for name, colour in COLOURS.items():
            if all(name in one.changes for one in curves):
                mean = np.mean([one.changes[name] for one in curves], axis=0)
                axis.plot(np.array(REMOVED) * 100, mean, color=colour, label=name)
        axis.axhline(0, color=LINE, linewidth=0.6)
        axis.set(xlabel="instances removed, %", ylabel="change of the logit")
        axis.legend(frameon=False)
    return figure

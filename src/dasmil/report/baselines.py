"""The baselines of a run beside its model, as a table of the report."""

from __future__ import annotations

import math

from dasmil.report.page import Cell, Column, Section, Table
from dasmil.report.words import decimal, display_name, interval_text, scored_bags
from dasmil.runs import Run, Verdict
from dasmil.vocabulary import METRICS


def baselines_section(run: Run, judged: Verdict) -> Section:
    """AUROC of the model and of every baseline on the same bags, and the difference; empty without baselines."""
    title = "Beside simple rules"
    if not judged.baselines or judged.split is None:
        return Section(title)
    scored = run.summary["splits"][judged.split]
    ends = scored.get("interval", {}).get("auroc")
    where = f"AUROC on {judged.split}, {scored_bags(scored)}"
    columns = [
        Column(""),
        *(Column(name, True) for name in (where, "Model minus rule", METRICS["balanced_accuracy"].title)),
    ]
    rows: list[list[str | Cell]] = [
        [display_name(run.model), Cell(decimal(scored["mean"].get("auroc")), interval_text(ends)), "",
         decimal(scored["mean"].get("balanced_accuracy"))]
    ]  # fmt: skip
    for name, rule in judged.baselines.items():
        own = rule["splits"].get(judged.split)
        if own is None:
            continue
        middle, low, high = judged.gap(name)
        gap = Cell(signed(middle), f"{signed(low)} to {signed(high)}" if low < high else "", low > 0 or high < 0)
        rows.append([
            Cell(rule["title"], rule["sees"]),
            Cell(decimal(own["mean"].get("auroc")), interval_text(own.get("interval", {}).get("auroc"))),
            gap, decimal(own["mean"].get("balanced_accuracy")),
        ])  # fmt: skip
    note = (
        "Rules without a network, fitted on the same training bags and scored on the same bags; types of instances are "
        "found by k-means. Below each figure its 95 % bootstrap interval, of differences from paired resamples; bold: "
        "the interval leaves out zero. That the best of three rules is compared favours the rules a little."
    )
    return Section(title, text=[judged.against_baselines], tables=[Table(columns, rows, note=note)])


def signed(value: float) -> str:
    """ "+0.021", or a dash."""
    return f"{value:+.3f}" if math.isfinite(value) else "–"

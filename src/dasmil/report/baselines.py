"""The baselines of a run beside its model, as a table of the report."""

from __future__ import annotations

import math

from dasmil.report.page import Cell, Column, Section, Table
from dasmil.report.words import decimal, display_name, interval_text, scored_bags
from dasmil.runs import Run, Verdict
from dasmil.vocabulary import task_metric


def baselines_section(run: Run, judged: Verdict) -> Section:
    """The main figure of the model and of every baseline on the same bags, the difference, and a second figure."""
    title = "Beside simple rules"
    if not judged.baselines or judged.split is None:
        return Section(title)
    scored = run.summary["splits"][judged.split]
    main, second = judged.metric, next((name for name in run.asked.headlines[1:] if name in scored["mean"]), None)
    ends = scored.get("interval", {}).get(main)
    where = f"{judged.title} on {judged.split}, {scored_bags(scored)}"
    titles = (where, "Model minus rule", *([task_metric(second, run.asked.unit)] if second else []))
    columns = [Column(""), *(Column(name, True) for name in titles)]
    rows: list[list[str | Cell]] = [
        [display_name(run.model), Cell(decimal(scored["mean"].get(main)), interval_text(ends)), "",
         *([decimal(scored["mean"].get(second))] if second else [])]
    ]  # fmt: skip
    for name, rule in judged.baselines.items():
        own = rule["splits"].get(judged.split)
        if own is None:
            continue
        middle, low, high = judged.gap(name)
        gap = Cell(signed(middle), f"{signed(low)} to {signed(high)}" if low < high else "", low > 0 or high < 0)
        rows.append([
            Cell(rule["title"], rule["sees"]),
            Cell(decimal(own["mean"].get(main)), interval_text(own.get("interval", {}).get(main))),
            gap, *([decimal(own["mean"].get(second))] if second else []),
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

"""What a run has shown, on the terminal: the verdict, the baselines beside the model, what to do next."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dasmil.runs import Run, Verdict


def print_verdict(run: Run) -> None:
    """Baselines as a table, the verdict in words, and commands for the next try where there is a reason for one."""
    from rich.console import Console

    from dasmil.report.advice import next_steps, tried
    from dasmil.runs import verdict

    judged = verdict(run)
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160)
    if judged.baselines and judged.split is not None:
        console.print()
        _print_baselines(console, judged)
    sentences = [judged.text, judged.against_baselines]
    for sentence in reversed(sentences) if judged.outdone else sentences:
        if sentence:
            console.print(sentence, soft_wrap=True)
    if steps := next_steps(run, judged):
        if not judged.too_few:
            console.print(tried(run, judged), soft_wrap=True)
        for why, command in steps:
            console.print(f"Next: {why}\n  {command}", soft_wrap=True)


def _print_baselines(console, judged: Verdict) -> None:
    from rich.table import Table

    from dasmil.vocabulary import model_title

    def figure(value, ends=None) -> str:
        if value is None or not math.isfinite(value):
            return "-"
        if not ends or None in ends or not all(map(math.isfinite, ends)):
            return f"{value:.3f}"
        return f"{value:.3f} [{ends[0]:.3f}, {ends[1]:.3f}]"

    table = Table("", box=None, pad_edge=False, header_style="bold")
    for name in (f"{judged.title} on {judged.split}", "model minus rule"):
        table.add_column(name, justify="right")
    own, metric = judged.run.summary["splits"][judged.split or ""], judged.metric
    table.add_row(model_title(judged.run.model), figure(own["mean"][metric], own["interval"].get(metric)), "")
    for name, rule in judged.baselines.items():
        scored = rule["splits"].get(judged.split or "")
        if scored is not None:
            middle, low, high = judged.gap(name)
            gap = (
                "-"
                if not math.isfinite(middle)
                else f"{middle:+.3f}" + (f" [{low:+.3f}, {high:+.3f}]" if low < high else "")
            )
            table.add_row(rule["title"], figure(scored["mean"][metric], scored["interval"].get(metric)), gap)
    console.print(table)

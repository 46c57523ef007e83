"""Results of training on the terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dasmil.vocabulary import METRICS, task_metric

if TYPE_CHECKING:
    from dasmil.runs import Run


def print_summary(summary: Mapping[str, Any], classes: int, bags: Mapping[str, str] | None = None) -> None:
    """An aligned table: one row a metric, one column a set; mean ± sd over seeds and the 95 % interval.

    classes: how many the run tells apart; more than two have no threshold. bags: of each set, in words, where the
    folds of a cross-validation share them.
    """
    from rich.console import Console
    from rich.table import Table

    from dasmil.report.words import resampled_text, scored_bags, seed_names, too_few_text

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160)
    splits = summary["splits"]
    table = Table("", box=None, pad_edge=False, header_style="bold")
    for name, scores in splits.items():
        table.add_column(f"{name} ({(bags or {}).get(name) or scored_bags(scores)})", justify="right")
    for metric, title in ((m.name, m.short) for m in METRICS.values()):
        table.add_row(title, *(_cell(scores, metric) for scores in splits.values()))
    console.print(table)
    console.print(f"{_over(summary)} [95 % interval over {resampled_text(splits)}].", end=" ")
    threshold = summary.get("threshold", {})
    if classes > 2:
        console.print("Sensitivity and specificity at the most probable class.")
    elif threshold.get("chosen_on") == "val":
        own = "folds" in summary and "models" not in summary
        each = "the thresholds that the folds" if own else _threshold(threshold)
        chosen = f"Sensitivity and specificity at {each} chose on the validation bags"
        console.print(f"{chosen}; balanced acc. and F1 at 0.5.")
    else:
        console.print("Sensitivity and specificity at 0.5.")
    if few := too_few_text(splits):
        console.print(few)
    if summary["stuck_seeds"]:
        names = seed_names(summary["stuck_seeds"])
        console.print(f"Did not fit the training bags: {names} (counted above; see status.json).")
    if summary.get("unproven_seeds"):
        console.print(
            f"Fitted the training bags, but no bags outside of them say that more was found: "
            f"{seed_names(summary['unproven_seeds'])} (give validation bags, or --folds)."
        )
    if summary.get("chance_seeds"):
        console.print(
            f"Fitted the training bags, but no better than chance on the validation bags: "
            f"{seed_names(summary['chance_seeds'])} (the model overfits, or there are too few validation bags)."
        )


def print_run(run: Run) -> None:
    """The scores of a finished run and what they say."""
    from dasmil.cli.verdict_display import print_verdict
    from dasmil.report.overfit import overfit_notice
    from dasmil.runs import read_library

    print_scores(run)
    if tried := read_library(run):
        print("\n".join(text for text in (tried.kept_text, tried.evidence_text, tried.positions_text) if text))
    if notice := overfit_notice(run):
        print(notice)
    print_verdict(run)


def print_scores(run: Run) -> None:
    """The scores of a finished run as a table."""
    from dasmil.report.words import set_bags

    bags = {name: set_bags(run, name) for name in run.splits}
    if run.task is None:
        print_summary(run.summary, run.classes, bags)
    else:
        print_task_summary(run.summary, run.task.unit, bags)


def print_task_summary(summary: Mapping[str, Any], unit: str = "", bags: Mapping[str, str] | None = None) -> None:
    """As `print_summary`, of a task that is no class; unit: of its times or numbers."""
    from rich.console import Console
    from rich.table import Table

    from dasmil.report.words import resampled_text, scored_bags, seed_names

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160)
    splits = summary["splits"]
    table = Table("", box=None, pad_edge=False, header_style="bold")
    for name, scores in splits.items():
        events = f", {scores['events']} events" if "events" in scores else ""
        table.add_column(f"{name} ({(bags or {}).get(name) or scored_bags(scores)}{events})", justify="right")
    for metric in dict.fromkeys(name for scores in splits.values() for name in scores["mean"]):
        cells = (_cell(scores, metric) if metric in scores["mean"] else "-" for scores in splits.values())
        table.add_row(task_metric(metric, unit), *cells)
    console.print(table)
    console.print(f"{_over(summary)} [95 % interval over {resampled_text(splits)}].")
    if summary["stuck_seeds"]:
        console.print(f"Did not fit the training bags: {seed_names(summary['stuck_seeds'])} (see status.json).")


def _over(summary: Mapping[str, Any]) -> str:
    """What the mean is over: the seeds, the folds, or (a cross-validation on other bags) the models of the folds."""
    folds = summary.get("folds")
    count = summary.get("models") or folds or len(summary["seeds"])
    what = f"models of {folds} folds" if "models" in summary else "folds" if folds else "seeds"
    return f"Mean ± standard deviation over {count} {what}" if count > 1 else f"One {what[:-1]}"


def _threshold(found: Mapping[str, Any]) -> str:
    """Of older runs every seed has its own."""
    return f"{found['decision']:.3f}, the threshold that the run" if "decision" in found else "thresholds the seeds"


def _cell(scores: Mapping[str, Any], metric: str) -> str:
    def number(value: float | None) -> str:
        return "-" if value is None or not math.isfinite(value) else f"{value:.3f}"

    if number(scores["mean"][metric]) == "-":
        return "-"
    low, high = scores["interval"][metric]
    repeats = scores["per_seed"] if "per_seed" in scores else scores["per_fold"]
    deviation = f" ± {number(scores['std'][metric])}" if len(repeats) > 1 else ""
    interval = "" if low is None or not math.isfinite(low) else f" [{number(low)}, {number(high)}]"
    return f"{number(scores['mean'][metric])}{deviation}{interval}"

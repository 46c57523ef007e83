"""The report of a run whose task is no class: survival, a number, several targets."""

from __future__ import annotations

import numpy as np

from dasmil.report import figures
from dasmil.report.advice import advice_section
from dasmil.report.baselines import baselines_section
from dasmil.report.covariates import covariates_section
from dasmil.report.figures import Panel
from dasmil.report.library import library_section
from dasmil.report.localisation import localisation_section
from dasmil.report.overfit import overfit_notice
from dasmil.report.page import BagRow, BagTable, Cell, Column, Headline, Page, Picture, Section, Table, picture
from dasmil.report.pictures import distance_pictures, learning_series
from dasmil.report.sections import MAX_BAG_ROWS, configuration_section, data_section
from dasmil.report.single import lead_sentence, no_test_notice, told_by
from dasmil.report.style import ACCENT
from dasmil.report.subgroups import subgroups_section
from dasmil.report.task_figures import task_section
from dasmil.report.words import (
    decimal,
    display_name,
    interval_text,
    resampled_text,
    scored_bags,
    seeds_text,
    set_bags,
    stuck_notice,
)
from dasmil.runs import Answers, Run, verdict
from dasmil.tasks import Task
from dasmil.vocabulary import task_metric


def task_page(run: Run) -> Page:
    """What was asked, the result, the figures that show it, curves, bags, data, configuration."""
    task = run.asked
    split, judged = run.splits[0], verdict(run)
    told = told_by(run)
    sections = [
        advice_section(run, judged),
        library_section(run),
        Section("What the model uses", text=told, pictures=distance_pictures(run, None)),
        task_section(run, split),
        baselines_section(run, judged),
        covariates_section(run),
        Section("Scores", tables=[scores_table(run)], text=[task.text + "."]),
        subgroups_section(run),
        localisation_section(run),
        Section("Learning curves", pictures=[] if run.out_of_fold else learning(run)),
        answers_section(run),
        data_section(run),
        configuration_section(run),
    ]
    notices = (stuck_notice(run), overfit_notice(run), no_test_notice(run, split))
    return Page(
        title=f"{display_name(run.model)} on {run.dataset}",
        kicker=f"dasmil report, {run.path.resolve().name}",
        lead=judged.first_sentence or lead_sentence(run),
        headlines=[headline(run, split, name) for name in _headlines(task, run, split)],
        remarks=[
            *([lead_sentence(run)] if judged.first_sentence else [judged.text]),
            measured(run, split),
            *([judged.against_baselines] if judged.against_baselines and not judged.outdone else []),
        ],
        notices=[text[0].upper() + text[1:] for text in notices if text],
        sections=[s for s in sections if s.text or s.pictures or s.tables or s.bags or s.folded],
    )


def _headlines(task: Task, run: Run, split: str) -> list[str]:
    known = run.summary["splits"][split]["mean"]
    return [name for name in task.headlines if name in known][:3]


def measured(run: Run, split: str) -> str:
    """On which bags, with how many events."""
    scored = run.summary["splits"][split]
    events = f", {scored['events']} of them with the event" if "events" in scored else ""
    return f"Measured on {split}: {scored_bags(scored)}{events}; {seeds_text(run)}."


def headline(run: Run, split: str, name: str) -> Headline:
    """One result in large figures with its interval."""
    scored = run.summary["splits"][split]
    between = interval_text(scored["interval"].get(name))
    note = f"95 % interval {between}" if between and "nan" not in between else "no interval"
    return Headline(task_metric(name, run.asked.unit), decimal(scored["mean"][name]), note)


def scores_table(run: Run) -> Table:
    """Every figure of every split: mean and deviation over seeds or folds, below it the interval."""
    splits = run.summary["splits"]
    columns = [Column(""), *(Column(f"{name} ({set_bags(run, name)})", True) for name in run.splits)]
    rows: list[list[str | Cell]] = []
    for metric in dict.fromkeys(name for scored in splits.values() for name in scored["mean"]):
        row: list[str | Cell] = [task_metric(metric, run.asked.unit)]
        for name in run.splits:
            scored = splits[name]
            if metric not in scored["mean"]:
                row.append("–")
                continue
            repeats = scored.get("per_seed") or scored.get("per_fold") or []
            spread = f" ± {decimal(scored['std'][metric])}" if len(repeats) > 1 else ""
            row.append(Cell(decimal(scored["mean"][metric]) + spread, interval_text(scored["interval"][metric])))
        rows.append(row)
    over = "folds" if run.folds else "seeds"
    note = (
        f"Mean ± standard deviation over {over}; below it the 95 % interval of the mean over the "
        f"{resampled_text(splits)}. Lower is better for errors and Brier scores."
    )
    return Table(columns, rows, note=note)


def learning(run: Run) -> list[Picture]:
    """Learning curves: losses and the task's own figure on validation bags."""
    name = run.asked.main
    panels = (
        ("train_loss", "Training loss", "loss"), ("val_loss", "Validation loss", "loss"),
        (f"val_{name}", f"Validation {task_metric(name)}", task_metric(name)),
    )  # fmt: skip
    found = []
    for column, title, label in panels:
        if series := learning_series([(run, ACCENT)], column):
            figure = figures.learning_curve(Panel(title, label, series, None, None))
            found.append(picture(figure, f"Learning curve: {title}"))
    return found


def answers_section(run: Run) -> Section:
    """Every bag with its true values and what the seeds say together, as a sortable table."""
    task = run.asked
    names: list[str] = []
    rows: list[BagRow] = []
    splits: list[str] = []
    for split in run.splits:
        for part in run.parts:  # every fold has its own bins of time
            found = part.answers(split)
            if not found:
                continue
            splits.append(split)
            said = part.asked.joined([one.outputs for one in found])
            names = names or _told(task)
            rows += [_row(task, split, found[0], i, said, names) for i in range(len(found[0].bag_ids))]
    columns = [Column("Bag"), Column("Split"), *(Column(c, True) for c in task.columns)]
    columns += [Column(f"predicted {name}", True) for name in names]
    note = "Click a column to sort by it."
    if len(rows) > MAX_BAG_ROWS:
        note += f" The first {MAX_BAG_ROWS:,} of {len(rows):,} bags are shown; predictions.csv has all."
    table = BagTable(columns, rows[:MAX_BAG_ROWS], list(dict.fromkeys(splits)), note, classes=False)
    return Section("Every bag", bags=table, anchor="every-bag")


def _told(task: Task) -> list[str]:
    """What the table of bags shows: the risk, the number, the probability."""
    return [next(iter(target.said(np.zeros((1, target.outputs))))) for target in task.targets]


def _row(task: Task, split: str, found: Answers, i: int, said: dict[str, np.ndarray], names: list[str]) -> BagRow:
    true = [text for target, own, _ in task.parts() for text in target.value_texts(found.values[i, own])]
    return BagRow(split, [found.bag_ids[i], split, *true, *(f"{said[name][i]:.3f}" for name in names)], False)

"""What is known of patients beside the model: a table and a figure of the report."""

from __future__ import annotations

import math

from dasmil.report.baselines import signed
from dasmil.report.figures import Score, scores
from dasmil.report.page import Cell, Column, Section, Table, picture
from dasmil.report.style import ACCENT, GREY
from dasmil.report.words import decimal, display_name, interval_text, plural
from dasmil.runs import CovariateRecord, CovariateScore, Run, read_covariates
from dasmil.vocabulary import task_metric_of

RULE = {"auroc": "Logistic regressions", "c_index": "Cox regressions", "r2": "Linear regressions"}
"""What stands beside a model, by its metric; of others linear regressions on the number of the value."""


def covariates_section(run: Run) -> Section:
    """Regressions on covariates, alone and with the model, beside the model; empty for a run without covariates."""
    title = "What the slide adds"
    found = read_covariates(run.path)
    if found is None:
        return Section(title)
    metric = task_metric_of(found["metric"]).short
    where = f"{metric} on {found['split']}, {plural(found['bags'], 'bag')}"
    columns = [Column(""), *(Column(name, True) for name in (where, "Model minus this", "What the model adds"))]
    rows: list[list[str | Cell]] = [[display_name(run.model), _value(found["model"]), "", ""]]
    rows += [
        [Cell(row["title"], row["sees"]), _value(row), _gap(row.get("model_minus")), _gap(row.get("model_adds"))]
        for row in found["rows"].values()
    ]
    rule = RULE.get(found["metric"], RULE["r2"])
    note = (
        f"{rule} with a ridge of 1 on standardised values, fitted on bags other than those that are "
        "scored. Below each figure its 95 % bootstrap interval over patients, of differences from paired resamples; "
        "bold: the interval leaves out zero."
    )
    if found["folds"] > 1:
        note += " What the model adds is fitted on what it says of bags that it was not trained on, fold by fold."
    else:
        note += " Covariates together with the model need bags that it was not trained on: train with --folds."
    lines = [Score(display_name(run.model), _number(found["model"]["mean"]), _ends(found["model"]), colour=ACCENT)]
    lines += [Score(row["title"], _number(row["mean"]), _ends(row), colour=GREY) for row in found["rows"].values()]
    figure = picture(scores(lines, f"{metric}, 95 % interval"), f"{metric} of the model and of covariates")
    return Section(title, text=[adds_text(run, found)], tables=[Table(columns, rows, note=note)], pictures=[figure])


def adds_text(run: Run, found: CovariateRecord) -> str:
    """What the model adds to covariates (or how it stands to them), in one sentence."""
    names, metric = ", ".join(found["covariates"]), task_metric_of(found["metric"]).short
    both = found["rows"].get("covariates+model")
    if both is None:
        gap = found["rows"]["covariates"].get("model_minus") or [math.nan] * 3
        what = f"{display_name(run.model)} minus {names} alone"
    else:
        gap = both.get("model_adds") or [math.nan] * 3
        what = f"The slide added to {names}"
    value, low, high = (_number(v) for v in gap)
    if not math.isfinite(value):
        return f"{what}: no difference in {metric} can be given on these bags."
    shown = f"{what}: {signed(value)} in {metric}"
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{shown}; too few patients for an interval."
    sure = "" if low > 0 or high < 0 else ", which these patients do not tell from nothing"
    return f"{shown} (95 % interval {signed(low)} to {signed(high)}){sure}."


def _value(row: CovariateScore) -> Cell:
    return Cell(decimal(row["mean"]), interval_text(row["interval"]))


def _gap(gap: list[float | None] | None) -> str | Cell:
    if gap is None:
        return ""
    value, low, high = (_number(v) for v in gap)
    ends = f"{signed(low)} to {signed(high)}" if low < high else ""
    return Cell(signed(value), ends, low > 0 or high < 0)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _ends(row: CovariateScore) -> tuple[float, float] | None:
    low, high = (_number(v) for v in row["interval"])
    return (low, high) if low < high else None

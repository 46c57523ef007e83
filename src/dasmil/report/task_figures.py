"""The figures that show how well a run answers a task that is no class, made from its predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dasmil.report import figures
from dasmil.report.figures import Score, scores
from dasmil.report.numeric_figures import bland_altman_figure, scatter
from dasmil.report.page import Picture, Section, picture
from dasmil.report.survival_figures import RiskGroup, survival_calibration, survival_curves
from dasmil.report.words import decimal, interval_text
from dasmil.runs import Run
from dasmil.stats import FollowUp, calibration_at, confusion_counts, in_groups, numeric_set, risk_cuts, summarise_set
from dasmil.tasks import NumberTarget, Target, TimeTarget
from dasmil.vocabulary import task_metric

Array = NDArray[np.float64]
RESAMPLES = 500


def task_section(run: Run, split: str) -> Section:
    """Curves of risk groups and calibration, scatter and agreement, or the scores of every target."""
    first = run.asked.targets[0]
    if run.asked.alone is None:
        return Section("How well it tells each target", pictures=target_pictures(run, split))
    if isinstance(first, TimeTarget):
        return Section("How well it tells risks apart", pictures=survival_pictures(run, split))
    if isinstance(first, NumberTarget):
        return Section("How near the predictions are", pictures=number_pictures(run, split, first))
    pictures = [*grade_pictures(run, split, first)] if first.classes else target_pictures(run, split)
    return Section(f"How well it predicts {first.name}", pictures=pictures)


def survival_pictures(run: Run, split: str) -> list[Picture]:
    """Kaplan-Meier curves of low and high predicted risk, cut at the median of validation bags; calibration."""
    times, events, member, told = [], [], [], []
    horizons: Sequence[float] = ()
    for part in run.parts:
        found = part.answers(split)
        if not found:
            continue
        target = part.asked.targets[0]
        assert isinstance(target, TimeTarget)
        others = part.answers("val") if split != "val" and "val" in part.splits else part.answers("train")
        cuts = risk_cuts(part.asked.joined([one.outputs for one in others])["risk"])
        said = part.asked.joined([one.outputs for one in found])
        times.append(found[0].values[:, 0])
        events.append(found[0].values[:, 1] == 1)
        member.append(in_groups(said["risk"], cuts))
        horizons = target.horizons
        if target.method == "hazards":
            told.append(target.survival_at(said, np.array(horizons)))
    if not times:
        return []
    follow, group = FollowUp(np.concatenate(times), np.concatenate(events)), np.concatenate(member)
    groups = [
        RiskGroup(name, follow[group == k]) for k, name in enumerate(("low risk", "high risk")) if (group == k).any()
    ]
    unit = run.asked.unit
    cut_on = "training" if split == "val" else "validation"
    caption = (
        f"{split}, {len(follow)} bags; cut at the median risk of the {cut_on} bags"
        f"{' of each fold' if run.folds else ''}. Bands are 95 % intervals, ticks are bags that were censored."
    )
    pictures = [picture(survival_curves(groups, unit or "as given"), f"Survival by predicted risk, {split}", caption)]
    if told and horizons:
        survival = np.concatenate(told)
        for k, time in enumerate(horizons):
            rows = calibration_at(follow, survival[:, k], time)
            figure = survival_calibration(rows, time, unit)
            text = "Groups of equal size by predicted risk; the diagonal is perfect." if k == 0 else ""
            pictures.append(picture(figure, f"Calibration at {time:g} {unit}", text))
    return pictures


def number_pictures(run: Run, split: str, target: NumberTarget) -> list[Picture]:
    """Predicted against true values, and their differences with the limits of agreement."""
    truth, said, patients = [], [], []
    for part in run.parts:
        found = part.answers(split)
        if found:
            truth.append(found[0].values[:, 0])
            said.append(part.asked.joined([one.outputs for one in found])[target.name])
            patients += found[0].patients
    if not truth:
        return []
    y, p = np.concatenate(truth), np.concatenate(said)
    name = target.name + (f" ({target.unit})" if target.unit else "")
    scored = run.summary["splits"][split]
    ends = interval_text(scored["interval"].get("r2"))
    note = f"R2 {decimal(scored['mean'].get('r2'))}" + (f" ({ends})" if ends else "")
    agreement = summarise_set(numeric_set(y, [p], patients), resamples=RESAMPLES)["interval"]
    caption = f"{split}, {len(y)} bags, mean of the seeds; on the line both are the same."
    limits = "Bands are 95 % intervals of the bias and of the limits that hold 95 % of differences."
    return [
        picture(scatter(y, p, name, note), f"Predicted and true {target.name}, {split}", caption),
        picture(bland_altman_figure(y, p, name, agreement), f"Agreement on {target.name}, {split}", limits),
    ]


def grade_pictures(run: Run, split: str, target: Target) -> list[Picture]:
    """True against predicted grades, counted over all folds."""
    truth, predicted = [], []
    for part in run.parts:
        found = part.answers(split)
        if found:
            truth.append(found[0].values[:, 0])
            predicted.append(part.asked.joined([one.outputs for one in found])[target.name])
    if not truth:
        return []
    y, p = np.concatenate(truth), np.concatenate(predicted)
    known = np.isfinite(y)
    counts = confusion_counts(y[known].astype(np.int64), p[known].astype(np.int64), len(target.classes))
    scored = run.summary["splits"][split]
    ends = interval_text(scored["interval"].get(target.main))
    caption = (
        f"{split}, {int(known.sum())} bags, mean of the seeds. {task_metric(target.main)} "
        f"{decimal(scored['mean'].get(target.main))}{f' ({ends})' if ends else ''}."
    )
    title = f"True and predicted {target.name}"
    return [picture(figures.confusion(counts, target.classes, title), f"{title}, {split}", caption)]


def target_pictures(run: Run, split: str) -> list[Picture]:
    """The main figure of every target with its interval, one diagram for each kind of figure."""
    scored = run.summary["splits"][split]
    found: dict[str, list[Score]] = {}
    for target in run.asked.targets:
        key = target.main if len(run.asked.targets) == 1 else f"{target.name}.{target.main}"
        value = scored["mean"].get(key)
        if value is None or not math.isfinite(value):
            continue
        low, high = (math.nan if v is None else float(v) for v in scored["interval"][key])
        ends = (low, high) if low < high else None
        found.setdefault(target.main, []).append(Score(target.name, float(value), ends))
    return [
        picture(
            scores(rows, f"{task_metric(metric)}, 95 % interval"), f"{task_metric(metric)} of every target, {split}"
        )
        for metric, rows in found.items()
    ]

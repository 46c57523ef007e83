"""Decisions at a threshold: decision curve, operating points, confusion by patient, agreement, referral."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from dasmil.errors import InputError
from dasmil.report import figures
from dasmil.report.page import Cell, Column, Picture, Section, Table, picture
from dasmil.report.style import ACCENT, FONT, GREY, INK, LINE, ORANGE, look, new_figure
from dasmil.report.words import decimal, interval_text, plural
from dasmil.runs import LabelledSet, Run, labelled_set, read_clinical
from dasmil.stats import confusion_counts
from dasmil.stats.agreement import by_patient, kappa_interval
from dasmil.stats.decisions import (
    DecisionCurve,
    OperatingPoint,
    decision_curve,
    operating_point,
    threshold_for_cost,
    threshold_for_sensitivity,
    threshold_for_specificity,
)
from dasmil.stats.referral import Referral, referral_curve

Array = NDArray[np.float64]
TARGETS = (0.9, 0.95)
ACCURACY = 0.95


def decisions_section(run: Run, split: str) -> Section:
    """Net benefit, thresholds and their rates, confusion by patient and referral of a set; empty without labels."""
    title = "Decisions"
    known = labelled_set(run, split)
    if known is None:
        return Section(title)
    return decision_parts(known, run.class_names, operating_rules(run, split, known), read_clinical(run.path))


def decision_parts(
    known: LabelledSet, names: Sequence[str], rules: Mapping[str, float | Array], clinical: Mapping[str, Any]
) -> Section:
    """The section from labelled bags; rules: thresholds by what they are for."""
    prevalence = clinical.get("prevalence")
    pictures, tables, text = [], [], []
    if known.probabilities.ndim == 1 and known.labels.min() < known.labels.max():
        curve = decision_curve(known.labels, known.probabilities, known.patients, prevalence=prevalence)
        pictures.append(decision_picture(curve, names[1]))
        text.append(useful_text(curve))
        tables.append(operating_table(known, rules, prevalence, names[1]))
    elif known.labels.min() == known.labels.max():
        text.append(f"All {plural(len(known.labels), 'bag')} are of one class: thresholds cannot be judged here.")
    if known.probabilities.ndim > 1:
        text.append(kappa_text(known, names))
    pictures += [*patient_confusion(known, names), referral_picture(known)]
    return Section("Decisions", text=text, tables=tables, pictures=pictures)


def operating_rules(run: Run, split: str, known: LabelledSet) -> dict[str, float | Array]:
    """Thresholds by name: the run's, for sensitivities and specificities that are reached on the validation bags, and
    for the cost that was stated. Of a cross-validation every fold chooses its own.
    """
    if known.probabilities.ndim > 1:
        return {}
    rules: dict[str, float | Array] = {"the run's threshold": known.thresholds}
    for name, choose in (("sensitivity", threshold_for_sensitivity), ("specificity", threshold_for_specificity)):
        for target in TARGETS:
            try:
                rules[f"{name} {target:g} on {'these' if split == 'val' else 'validation'} bags"] = _chosen(
                    run, split, known, lambda y, p, choose=choose, target=target: choose(y, p, target)
                )
            except InputError:  # a fold without validation bags of both classes
                continue
    cost = read_clinical(run.path).get("missed_cost")
    if cost is not None:
        rules[f"cost: a missed positive counts {cost:g} false alarms"] = threshold_for_cost(cost)
    return rules


def _chosen(run: Run, split: str, known: LabelledSet, choose: Any) -> Array:
    """The threshold of every bag, chosen on the validation bags of its own part of the run."""
    found = np.empty(len(known.labels))
    for number, part in enumerate(run.parts):
        if (own := known.fold == number).any():
            val = labelled_set(part, "val")
            if val is None:
                raise InputError("no validation bags")
            found[own] = choose(val.labels, val.probabilities)
    return found


def operating_table(
    known: LabelledSet, rules: Mapping[str, float | Array], prevalence: float | None, positive: str
) -> Table:
    """Rates of every rule with their intervals, PPV and NPV at a stated prevalence or that of the bags."""
    rows: list[list[str | Cell]] = []
    points = {
        name: operating_point(known.labels, known.probabilities, cut, known.patients, prevalence=prevalence)
        for name, cut in rules.items()
    }
    names = ("sensitivity", "specificity", "ppv", "npv", "flagged")
    for name, point in points.items():
        cut = np.unique(np.asarray(rules[name], dtype=np.float64))
        label = Cell(decimal(point.threshold), "mean of folds" if len(cut) > 1 else "")
        rows.append([name, label, *(_rate(point, rate) for rate in names)])
    share = next(iter(points.values())).prevalence
    stated = "the stated prevalence of" if prevalence is not None else "the prevalence of these bags,"
    columns = [Column("Threshold for"), *(Column(c, True) for c in
               ("Threshold", "Sensitivity", "Specificity", "PPV", "NPV", "Called positive"))]  # fmt: skip
    note = (
        f"Positive: {positive}. PPV, NPV and the share called positive are at {stated} {100 * share:.1f} %. Below each "
        "rate its 95 % interval over patients."
    )
    return Table(columns, rows, note=note)


def _rate(point: OperatingPoint, name: str) -> Cell:
    value, low, high = point.values[name]
    return Cell(decimal(value), interval_text((low, high)) if math.isfinite(low) else "")


def useful_text(curve: DecisionCurve) -> str:
    """At which thresholds the model is worth more than acting on all or none, in one sentence."""
    ranges = curve.useful()
    if not ranges:
        return (
            "At no threshold is the net benefit of the model shown to exceed that of treating all patients and none "
            "(95 % band)."
        )
    said = ", ".join(f"{low:.2f} to {high:.2f}" if low < high else f"{low:.2f}" for low, high in ranges)
    return f"The net benefit of the model exceeds that of treating all and treating none at thresholds {said}."


def decision_picture(curve: DecisionCurve, positive: str) -> Picture:
    """The decision curve with its band, beside acting on all and on none."""
    caption = (
        f"Net benefit of acting when the probability of {positive} reaches the threshold, with its 95 % band over "
        "patients: true positives per patient, minus false positives weighed by the odds of the threshold."
    )
    return picture(decision_figure(curve), "Decision curve", caption)


def decision_figure(curve: DecisionCurve) -> Figure:
    """Net benefit by threshold."""
    top = 1.15 * max(float(curve.high.max()), float(curve.everyone.max()), 0.05)
    floor = -0.25 * top
    shown = curve.everyone >= floor
    with look():
        figure, (axis,) = new_figure(430, 320)
        axis.axhline(0, color=INK, linewidth=0.8)
        axis.plot(curve.thresholds[shown], curve.everyone[shown], color=GREY, linewidth=1.2, label="treat all")
        axis.fill_between(curve.thresholds, curve.low, curve.high, color=ACCENT, alpha=0.16, linewidth=0)
        axis.plot(curve.thresholds, curve.model, color=ACCENT, linewidth=1.6, label="model")
        axis.set(xlim=(0, 1), ylim=(floor, top), xlabel="threshold of the probability", ylabel="net benefit")
        axis.set_title("Decision curve, 95 % band")
        middle = len(curve.thresholds) // 3
        axis.annotate("model", (curve.thresholds[middle], curve.high[middle]), xytext=(4, 4),
                      textcoords="offset points", color=ACCENT, fontsize=FONT - 1)  # fmt: skip
        end = int(np.flatnonzero(shown)[-1])
        axis.annotate("treat all", (curve.thresholds[end], curve.everyone[end]), xytext=(5, 2),
                      textcoords="offset points", color=GREY, fontsize=FONT - 1)  # fmt: skip
        axis.annotate("treat none", (0, 0), xytext=(3, -3), textcoords="offset points", va="top", fontsize=FONT - 1)
    return figure


def patient_confusion(known: LabelledSet, names: Sequence[str]) -> list[Picture]:
    """Counts of patients, by the mean probability of their bags; nothing where every bag is a patient."""
    if len(set(known.patients)) == len(known.patients):
        return []
    found = by_patient(known.labels, known.probabilities, known.patients)
    if not len(found.labels):
        return []
    cuts = by_patient(known.labels, known.thresholds, known.patients).probabilities
    p = found.probabilities
    predicted = (p >= cuts).astype(np.int64) if p.ndim == 1 else p.argmax(1)
    counts = confusion_counts(found.labels, predicted, len(names))
    left = f" {plural(found.mixed, 'patient')} with bags of several classes are left out." if found.mixed else ""
    caption = f"{plural(len(found.labels), 'patient')}, by the mean probability of their bags.{left}"
    return [picture(figures.confusion(counts, names, "Confusion by patient"), "Confusion matrix by patient", caption)]


def kappa_text(known: LabelledSet, names: Sequence[str]) -> str:
    """Quadratic weighted kappa in one sentence: it takes the classes in their order."""
    value, low, high = kappa_interval(known.labels, known.predicted, len(names), known.patients)
    if not math.isfinite(value):
        return "Weighted kappa cannot be given: all bags and all predictions are of one class."
    between = (
        f" (95 % interval {low:.3f} to {high:.3f})" if math.isfinite(low) else " (too few patients for an interval)"
    )
    return f"If the classes are ordered ({' < '.join(names)}), their quadratic weighted kappa is {value:.3f}{between}."


def referral_picture(known: LabelledSet) -> Picture:
    """Accuracy on what is kept when the least certain bags are referred."""
    binary = known.probabilities.ndim == 1
    found = referral_curve(known.labels, known.probabilities, known.patients,
                           threshold=known.thresholds if binary else 0.5)  # fmt: skip
    share = found.needed(ACCURACY)
    if share is None:
        told = f"No share of referred bags gives an accuracy of {ACCURACY:.0%}."
    elif share == 0:
        told = f"Accuracy is {ACCURACY:.0%} or more without referral."
    else:
        told = f"Accuracy of {ACCURACY:.0%} on the rest needs {share:.0%} of the bags referred."
    caption = f"Accuracy on the bags that the model keeps when the least certain ones go to a human. {told}"
    return picture(referral_figure(found), "Referral to a human", caption)


def referral_figure(found: Referral) -> Figure:
    """Accuracy against the share referred, with its band."""
    with look():
        figure, (axis,) = new_figure(330, 320)
        axis.fill_between(found.referred, found.low, found.high, color=ACCENT, alpha=0.16, linewidth=0)
        axis.plot(found.referred, found.accuracy, color=ACCENT, linewidth=1.6)
        axis.axhline(ACCURACY, color=ORANGE, linewidth=0.8, linestyle=(0, (4, 2)))
        axis.set(xlim=(0, 0.9), xlabel="bags referred to a human", ylabel="accuracy on the other bags")
        axis.set_ylim(top=1.01)
        axis.grid(axis="y", color=LINE, linewidth=0.6)
        axis.set_axisbelow(True)
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_formatter(PercentFormatter(1, decimals=0))
        axis.set_title("Referral, 95 % band")
    return figure

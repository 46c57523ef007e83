"""The page of an external validation: case mix, discrimination, calibration, decisions, shift of features, slides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dasmil.errors import InputError
from dasmil.report import figures
from dasmil.report.calibration import calibration_table
from dasmil.report.decisions import decision_parts
from dasmil.report.page import BagRow, BagTable, Cell, Column, Headline, Page, Section, Table, picture
from dasmil.report.style import ACCENT, FONT, GREY, ORANGE, look, new_figure
from dasmil.report.subgroups import subgroup_parts
from dasmil.report.words import decimal, display_name, interval_text, plural
from dasmil.runs import LabelledSet, Run, patient_folds, recalibration_of
from dasmil.stats import calibration_curve, roc_curve
from dasmil.stats.decisions import threshold_for_cost
from dasmil.stats.delong import aurocs
from dasmil.stats.domain import Domain
from dasmil.stats.recalibrate import cross_fitted
from dasmil.stats.subgroups import Subgroups
from dasmil.vocabulary import METRICS

Array = NDArray[np.float64]
Cells = Mapping[str, Mapping[str, str | None]]
MOVED = 8
MOST_VALUES = 12
Z = 1.959964


@dataclass(frozen=True, eq=False)
class External:
    """What a page is made from; own: bags of the run's own first set. sizes: instances per bag; sets: of their
    coverage in words; moments [bags, k]: of features, as the run's domain has them.
    """

    run: Run
    summary: Mapping[str, Any]
    known: LabelledSet
    own: LabelledSet
    own_split: str
    sizes: Sequence[int]
    own_sizes: Sequence[int]
    cells: Cells
    own_cells: Cells
    rows: Sequence[Mapping[str, Any]]
    subgroups: Subgroups | None
    looked: Sequence[Mapping[str, Any]]
    domain: Domain | None
    moments: Array | None
    sets: str
    clinical: Mapping[str, Any]


def external_page(found: External) -> tuple[Page, dict[str, Any]]:
    """The page, and what it found as a JSON object."""
    run, known = found.run, found.known
    scored = found.summary["splits"]["bags"]["ensemble"]
    difference = _difference(found)
    shift, facts = domain_section(found)
    rules: dict[str, float | Array] = {"the run's threshold": known.thresholds}
    cost = found.clinical.get("missed_cost")
    if cost is not None:
        rules[f"cost: a missed positive counts {cost:g} false alarms"] = threshold_for_cost(cost)
    sections = [
        Section("Case mix", tables=[case_mix(found)]),
        discrimination(found, difference),
        calibration(found),
        decision_parts(known, run.class_names, rules, found.clinical),
        Section("Prediction sets", text=[found.sets]),
        *([subgroup_parts(found.subgroups)] if found.subgroups is not None else []),
        shift,
        slides(found),
    ]
    lead = f"{display_name(run.model)} on bags of elsewhere: AUROC {_with_ends(scored, 'auroc')}."
    count = plural(len(known.labels), "bag")
    page = Page(
        title=f"External validation of {display_name(run.model)}",
        kicker=f"dasmil external validation of {run.path.resolve().name}",
        lead=lead,
        headlines=[
            Headline(METRICS[name].title, decimal(scored.get(name)), _note(scored, name))
            for name in ("auroc", "balanced_accuracy", "brier")
        ],
        remarks=[
            f"{count} of {plural(len(set(known.patients)), 'patient')}; predictions are the mean of "
            f"{plural(len(run.all_seeds), 'model')}.",
            *([difference[0]] if difference else []),
        ],
        notices=[facts["notice"]] if facts.get("notice") else [],
        sections=[s for s in sections if s.text or s.tables or s.pictures or s.bags],
    )
    return page, {"domain": facts, "prediction_sets": found.sets,
                  "subgroups": None if found.subgroups is None else found.subgroups.as_json()}  # fmt: skip


def _with_ends(scored: Mapping[str, Any], name: str) -> str:
    ends = interval_text(scored["interval"].get(name))
    return decimal(scored.get(name)) + (f" (95 % interval {ends})" if _finite(scored["interval"].get(name)) else "")


def _note(scored: Mapping[str, Any], name: str) -> str:
    ends = scored["interval"].get(name)
    return f"95 % interval {interval_text(ends)}" if _finite(ends) else "too few patients of a class for an interval"


def _finite(ends: Sequence[Any] | None) -> bool:
    return bool(ends) and all(isinstance(end, int | float) and math.isfinite(end) for end in ends or ())


def _difference(found: External) -> tuple[str, float] | None:
    """How far the AUROC differs from that on the run's own bags, with an interval; None where it cannot be said."""
    if found.known.probabilities.ndim > 1:
        return None
    try:
        there = aurocs(found.known.labels, [found.known.probabilities], found.known.patients)
        here = [
            aurocs(found.own.labels[rows], [found.own.probabilities[rows]],
                   [found.own.patients[i] for i in np.flatnonzero(rows)])
            for rows in (found.own.fold == k for k in np.unique(found.own.fold))
        ]  # fmt: skip
    except InputError:
        return None
    inside = float(np.mean([one.values[0] for one in here]))
    variance = float(there.covariance[0, 0]) + sum(float(one.covariance[0, 0]) for one in here) / len(here) ** 2
    gap = float(there.values[0]) - inside
    if not variance > 0:
        return None
    half = Z * math.sqrt(variance)
    text = (
        f"On the run's own {found.own_split} bags the AUROC was {inside:.3f}: the difference is {gap:+.3f} "
        f"(95 % interval {gap - half:+.3f} to {gap + half:+.3f}, DeLong by patient)."
    )
    return text, gap


def case_mix(found: External) -> Table:
    """Patients, classes, sizes and stated columns of these bags beside those that the run was judged on."""
    columns = [Column(""), Column("External", True), Column(f"Internal, {found.own_split}", True)]
    sides = (found.known, found.own)
    rows: list[list[str | Cell]] = [
        ["Bags", *(f"{len(side.labels):,}" for side in sides)],
        ["Patients", *(f"{len(set(side.patients)):,}" for side in sides)],
    ]
    for c, name in enumerate(found.run.class_names):
        counts = [int((side.labels == c).sum()) for side in sides]
        rows.append([f"Class {name}", *(_share(n, len(s.labels)) for n, s in zip(counts, sides, strict=True))])
    rows.append(["Instances per bag, median (quartiles)", _quartiles(found.sizes), _quartiles(found.own_sizes)])
    for text in found.cells:
        rows += _column_rows(text, found.cells[text], found.own_cells.get(text), sides)
    return Table(columns, rows, note="Columns of the label tables count bags. – : not known.")


def _column_rows(
    text: str, there: Mapping[str, str | None], here: Mapping[str, str | None] | None, sides: Sequence[LabelledSet]
) -> list[list[str | Cell]]:
    """A column as median and quartiles where it is numbers, else the share of every value."""
    from dasmil.stats.subgroups import column_of

    values = [
        None if own is None else [own.get(bag) for bag in side.bag_ids] for own, side in zip((there, here), sides)
    ]
    known = [[v for v in own if v is not None] if own is not None else [] for own in values]
    numbers = [[_number(v) for v in own] for own in known]
    if known[0] and all(v is not None for own in numbers for v in own) and len(set(known[0])) > 2:
        return [[f"{column_of(text)}, median (quartiles)", *(_quartiles([v for v in own if v is not None])
                                                             for own in numbers)]]  # fmt: skip
    names = sorted(set(known[0]) | set(known[1]))
    if len(names) > MOST_VALUES:
        return []
    return [
        [f"{text}: {name}", *(_share(own.count(name), len(own)) if own else "–" for own in known)] for name in names
    ]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _share(count: int, n: int) -> Cell:
    return Cell(f"{count:,}", f"{100 * count / n:.0f} %" if n else "")


def _quartiles(values: Sequence[float]) -> str:
    if not len(values):
        return "–"
    low, middle, high = np.quantile(np.asarray(values, dtype=np.float64), [0.25, 0.5, 0.75])
    return f"{middle:g} ({low:g}–{high:g})"


def discrimination(found: External, difference: tuple[str, float] | None) -> Section:
    """All scores beside those of the run's own bags, and the ROC curve."""
    there, here = found.summary["splits"]["bags"], found.run.summary["splits"][found.own_split]
    columns = [Column(""), Column("External, mean of the models", True), Column("External, one model", True),
               Column(f"Internal, {found.own_split}", True)]  # fmt: skip
    rows: list[list[str | Cell]] = []
    for name, metric in METRICS.items():
        sides = ((there["ensemble"].get(name), there["ensemble"]["interval"].get(name)),
                 (there["mean"].get(name), there["interval"].get(name)),
                 (here["mean"].get(name), here["interval"].get(name)))  # fmt: skip
        rows.append([metric.title, *(Cell(decimal(v), interval_text(e) if _finite(e) else "") for v, e in sides)])
    note = (
        "Below each score its 95 % interval over patients. Balanced accuracy and F1 at 0.5, sensitivity and "
        f"specificity at {found.run.threshold:.3f}, the threshold of the run."
    )
    pictures = []
    curve = None
    if found.known.probabilities.ndim == 1:
        curve = roc_curve((found.known.labels == 1, [found.known.probabilities], found.known.patients))
    if curve is not None:
        label = f"AUROC {decimal(there['ensemble'].get('auroc'))}"
        pictures = [picture(figures.roc([(label, curve, ACCENT)]), "ROC curve", "Mean of the models, 95 % band.")]
    text = [difference[0]] if difference else ["The AUROC cannot be compared with that on the run's own bags."]
    return Section("Discrimination", text=text, tables=[Table(columns, rows, note=note)], pictures=pictures)


def calibration(found: External) -> Section:
    """Calibration as predicted, by the run's map, and with an intercept that was fitted on other patients here."""
    known = found.known
    sets: list[tuple[str, Array]] = [("as predicted", known.probabilities)]
    text: list[str] = []
    if (own := recalibration_of(found.run)) is not None:
        sets.append((f"recalibrated by the run ({own.method})", own(known.probabilities)))
    try:
        folds = patient_folds(known.patients)
        moved = cross_fitted(known.labels, known.probabilities, folds, "in-the-large")
        sets.append(("intercept fitted on other patients here", moved))
    except InputError as error:
        text.append(f"No recalibration-in-the-large: {error}.")
    table, told = calibration_table(known.labels, sets, known.patients, found.run.class_names)
    pictures = []
    for title, p in sets if known.probabilities.ndim == 1 else sets[:1]:
        bins = calibration_curve(known.labels, p, known.patients)
        pictures.append(picture(figures.calibration(bins), f"Calibration, {title}", f"{title[0].upper()}{title[1:]}."))
    return Section("Calibration", text=[*told, *text], tables=[table], pictures=pictures)


def domain_section(found: External) -> tuple[Section, dict[str, Any]]:
    """How far slides lie from those of training, which features moved, and how they were made."""
    title = "Shift of features"
    made = _made_table(found)
    if found.domain is None or found.moments is None:
        text = "This run has no moments of its training features (it is older, or its instances are pictures)."
        return Section(title, text=[text], tables=[made]), {}
    distance = found.domain.distance(found.moments)
    unusual = found.domain.unusual(distance)
    share = float(unusual.mean())
    expected = max(0.01, 1 / (len(found.domain.distances) + 1))
    sentence = (
        f"{int(unusual.sum())} of {plural(len(distance), 'slide')} ({share:.0%}) have unusual features: they lie "
        f"farther from the training slides than {1 - expected:.0%} of these lie from one another."
    )
    caption = (
        "Root mean square distance of each slide from the mean of training slides, in units of their spread; training "
        "slides from those of other patients."
    )
    figure = picture(distance_figure(found.domain.distances, distance), "Distance to training slides", caption)
    moved = found.domain.standardised(found.moments).mean(0)
    order = np.argsort(-np.abs(moved))[:MOVED]
    half = len(moved) // 2
    rows: list[list[str | Cell]] = [
        [f"{'mean' if k < half else 'spread'} of feature {k % half}", f"{moved[k]:+.2f}"] for k in order.tolist()
    ]
    table = Table(
        [Column("Moved most"), Column("Mean shift (training SD)", True)], rows,
        note="Mean over slides of each feature's mean and spread within a slide, in standard deviations "
        "between training slides.",
    )  # fmt: skip
    notice = sentence if share > 3 * expected and unusual.sum() > 1 else ""
    facts = {"unusual": int(unusual.sum()), "slides": len(distance), "median_distance": float(np.median(distance)),
             "notice": notice}  # fmt: skip
    return Section(title, text=[sentence], tables=[made, table], pictures=[figure]), facts


def _made_table(found: External) -> Table:
    """Encoder and distance between instances, here and in training."""
    seen = found.run.seen
    known = {name: "–" if seen is None else ", ".join(seen[name]) or "not stated" for name in ("encoder",)}
    own_stride = None if seen is None else seen["stride_um"]
    encoders = sorted({str(row["encoder"]) for row in found.looked if row.get("encoder")})
    strides = [float(row["stride_um"]) for row in found.looked if row.get("stride_um")]
    rows: list[list[str | Cell]] = [
        ["Encoder", ", ".join(encoders) or "not stated", known["encoder"]],
        ["Distance between instances (um), median", decimal(float(np.median(strides)), 1) if strides else "–",
         decimal(own_stride, 1)],
    ]  # fmt: skip
    return Table([Column("How bags were made"), Column("External", True), Column("Training", True)], rows)


def distance_figure(training: Array, here: Array) -> Figure:
    """Two strips of points: training slides and these."""
    with look():
        figure, (axis,) = new_figure(430, 170)
        jitter = np.random.default_rng(0)
        for y, (name, values, colour) in enumerate((("training", training, GREY), ("external", here, ORANGE))):
            axis.scatter(values, y + jitter.uniform(-0.22, 0.22, len(values)), s=9, color=colour, alpha=0.6,
                         linewidth=0, label=name)  # fmt: skip
            axis.plot([np.median(values)] * 2, [y - 0.35, y + 0.35], color=colour, linewidth=1.6)
        axis.set_yticks([0, 1], ["training", "external"])
        axis.set(ylim=(1.6, -0.6), xlabel="distance to training slides (SD); bar: median")
        axis.set_xlim(left=0)
        axis.tick_params(axis="y", length=0, labelsize=FONT - 1)
        axis.spines["left"].set_visible(False)
    return figure


def slides(found: External) -> Section:
    """Every slide with truth, prediction and distance, sortable."""
    known, names = found.known, found.run.class_names
    p = known.probabilities
    distance = found.domain.distance(found.moments) if found.domain is not None and found.moments is not None else None
    unusual = found.domain.unusual(distance) if found.domain is not None and distance is not None else None
    of = f"Probability of {names[1]}" if p.ndim == 1 else "Confidence"
    columns = [Column("Bag"), Column("Patient"), Column("True"), Column("Predicted"), Column(of, True),
               Column("Distance (SD)", True), Column("Unusual")]  # fmt: skip
    rows = []
    for i, bag in enumerate(known.bag_ids):
        label, guess = int(known.labels[i]), int(known.predicted[i])
        value = float(p[i]) if p.ndim == 1 else float(p[i].max())
        cells = [
            bag, known.patients[i], names[label], names[guess], f"{value:.3f}",
            "–" if distance is None else f"{distance[i]:.2f}", "yes" if unusual is not None and unusual[i] else "",
        ]  # fmt: skip
        rows.append(BagRow("external", cells, label != guess))
    note = "Click a column to sort by it. Wrong predictions are orange."
    return Section("Every slide", bags=BagTable(columns, rows, ["external"], note), anchor="every-bag")

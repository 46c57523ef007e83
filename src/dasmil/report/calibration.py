"""How well predicted probabilities are calibrated: curve and figures, as predicted and after recalibration."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dasmil.errors import InputError
from dasmil.report.page import Cell, Column, Section, Table
from dasmil.report.pictures import calibration_picture
from dasmil.report.words import decimal, plural
from dasmil.runs import Run, labelled_set, recalibrated
from dasmil.stats.calibration import Calibration, calibrate
from dasmil.vocabulary import METRICS

Array = NDArray[np.float64]
ROWS = {
    "slope": "Slope",
    "intercept": "Intercept",
    "in_the_large": "Calibration-in-the-large",
    "expected_over_observed": "Expected / observed events",
    "brier": METRICS["brier"].title,
    "calibration_error": f"{METRICS['calibration_error'].title} (ECE)",
}
IDEAL = {"slope": "1", "intercept": "0", "in_the_large": "0", "expected_over_observed": "1"}


def calibration_section(run: Run, split: str) -> Section:
    """Reliability curve, slope, intercept, events, Brier score and calibration error; empty without labelled bags."""
    title = "Calibration"
    known = labelled_set(run, split)
    if known is None:
        return Section(title)
    sets: list[tuple[str, Array]] = [("as predicted", known.probabilities)]
    left_out: list[str] = []
    try:
        after = recalibrated(run, split, known)
        if after is not None:
            sets.append((f"recalibrated, {after[1]}", after[0]))
    except InputError as error:  # too few bags to fit further maps that can be judged on others
        left_out.append(f"The recalibration of the run cannot be judged on these bags: {error}.")
    picture = calibration_picture(run, split)
    table, text = calibration_table(known.labels, sets, known.patients, run.class_names)
    return Section(title, text=[*text, *left_out], tables=[table], pictures=[picture] if picture else [])


def calibration_table(
    labels: NDArray[np.int64], sets: Sequence[tuple[str, Array]], patients: Sequence[str], names: Sequence[str]
) -> tuple[Table, list[str]]:
    """Figures with intervals over patients, one column for each set of probabilities and class; and what they say."""
    binary = sets[0][1].ndim == 1
    columns, found = [Column("")], []
    for title, p in sets:
        for c in [1] if binary else range(p.shape[1]):
            own = p if binary else p[:, c]
            found.append(calibrate((labels == c).astype(np.int64), own, patients))
            columns.append(Column(title if binary else f"{names[c]}, {title}", True))
    rows: list[list[str | Cell]] = []
    for key, name in ROWS.items():
        label = Cell(name, f"ideal {IDEAL[key]}") if key in IDEAL else name
        rows.append([label, *(_value(one, key) for one in found)])
    note = (
        f"{plural(len(labels), 'bag')} of {plural(len(set(patients)), 'patient')} taken together; below each figure "
        "its 95 % bootstrap interval over patients, where there are enough. A slope below 1: predictions are too "
        "extreme. The calibration error has no interval; below it the values that a perfectly calibrated model reaches "
        "here by chance (median, 95th percentile)."
    )
    problems = [one.problem for one in found if one.problem]
    return Table(columns, rows, note=note), list(
        dict.fromkeys([*problems, *([] if problems else [_sentence(found[0])])])
    )


def _value(found: Calibration, key: str) -> Cell:
    value, low, high = found.values[key]
    if key == "calibration_error":
        return Cell(decimal(value), f"by chance {decimal(found.by_chance[0])}, {decimal(found.by_chance[1])}")
    return Cell(decimal(value), f"{low:.3f} to {high:.3f}" if math.isfinite(low) else "")


def _sentence(found: Calibration) -> str:
    """What slope and calibration-in-the-large show, in one sentence."""
    slope, large = found.values["slope"], found.values["in_the_large"]
    if not (math.isfinite(slope[1]) and math.isfinite(large[1])):
        return "There are too few patients of a class for intervals of the calibration."
    faults = []
    if slope[2] < 1 or slope[1] > 1:
        faults.append(f"predictions are too {'extreme' if slope[2] < 1 else 'moderate'} (slope {slope[0]:.2f})")
    if large[1] > 0 or large[2] < 0:
        faults.append(
            f"probabilities are too {'low' if large[1] > 0 else 'high'} on average (by {large[0]:+.2f} logits)"
        )
    if not faults:
        return "No miscalibration is shown: the intervals of slope and calibration-in-the-large include their ideals."
    text = " and ".join(faults)
    return f"{text[0].upper()}{text[1:]}."

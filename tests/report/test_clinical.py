"""Calibration, decisions and recalibration in reports: their figures, and sentences where there are none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dasmil.report.calibration import calibration_section, calibration_table
from dasmil.report.decisions import decision_parts, decisions_section
from dasmil.report.page import Cell
from dasmil.runs import LabelledSet, Run, labelled_set
from dasmil.stats.calibration import calibrate
from dasmil.stats.decisions import threshold_for_sensitivity


def cells(table):
    return {
        (row[0].main if isinstance(row[0], Cell) else row[0]): [c.main if isinstance(c, Cell) else c for c in row[1:]]
        for row in table.rows
    }


def made(patients=60, seed=0, slides=2):
    rng = np.random.default_rng(seed)
    y = (rng.random(patients) < 0.4).astype(int)
    own = np.repeat(np.arange(patients), slides)
    p = 1 / (1 + np.exp(-(2 * y[own] - 1 + rng.normal(size=patients)[own])))
    fold = own % 3
    return LabelledSet(
        [f"b{i}" for i in range(len(own))], y[own], p, [f"p{i}" for i in own], np.full(len(own), 0.5), fold
    )


def test_the_table_has_the_figures_of_the_run(trained: Path) -> None:
    run = Run.read(trained / "patients")
    known = labelled_set(run, "test")
    assert known is not None
    found = calibrate(known.labels, known.probabilities, known.patients)
    section = calibration_section(run, "test")
    assert cells(section.tables[0])["Brier score"] == [f"{found.values['brier'][0]:.3f}"]
    assert "16 bags of 4 patients" in section.tables[0].note
    assert "too few patients" in section.text[0]


def test_three_classes_have_a_column_each_and_kappa(trained: Path) -> None:
    run = Run.read(trained / "three")
    names = [column.name for column in calibration_section(run, "test").tables[0].columns]
    assert names == ["", "A & O, as predicted", "B, as predicted", "C, as predicted"]
    assert any("weighted kappa" in text for text in decisions_section(run, "test").text)


def test_thresholds_are_chosen_on_validation_bags_and_judged_on_others(trained: Path) -> None:
    run = Run.read(trained / "binary")
    val, test = labelled_set(run, "val"), labelled_set(run, "test")
    assert val is not None
    assert test is not None
    table = decisions_section(run, "test").tables[0]
    cut = threshold_for_sensitivity(val.labels, val.probabilities, 0.9)
    reached = (test.probabilities[test.labels == 1] >= cut).mean()
    assert cells(table)["sensitivity 0.9 on validation bags"][:2] == [f"{cut:.3f}", f"{reached:.3f}"]


def test_predictive_values_follow_the_stated_prevalence() -> None:
    known = made()
    rules = {"the run's threshold": known.thresholds}
    own = cells(decision_parts(known, ["no", "yes"], rules, {}).tables[0])["the run's threshold"]
    rare = cells(decision_parts(known, ["no", "yes"], rules, {"prevalence": 0.02}).tables[0])["the run's threshold"]
    sens, spec = float(own[1]), float(own[2])
    assert float(rare[3]) == pytest.approx(sens * 0.02 / (sens * 0.02 + (1 - spec) * 0.98), abs=2e-3)
    assert own[1:3] == rare[1:3]


@pytest.mark.parametrize(("change", "says"), [
    (lambda k: replace(k, labels=np.zeros_like(k.labels)), "of one class"),
    (lambda k: replace(k, probabilities=np.full(len(k.labels), 0.4)), "All predictions are 0.400"),
])  # fmt: skip
def test_what_cannot_be_said_is_a_sentence(change, says) -> None:
    known = change(made())
    table, text = calibration_table(known.labels, [("as predicted", known.probabilities)], known.patients, ["n", "y"])
    section = decision_parts(known, ["n", "y"], {"the run's threshold": known.thresholds}, {})
    assert says in text[0]
    shown = [cell for rows in (cells(table), *map(cells, section.tables)) for row in rows.values() for cell in row]
    assert "nan" not in " ".join([*shown, *text, *section.text]).lower()

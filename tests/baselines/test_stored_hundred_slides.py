"""The figures of docs/results/hundred-slides.md are those of the stored predictions."""

import dataclasses
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasmil.stats import auroc

PAGE = Path(__file__).parents[2] / "docs" / "results" / "hundred-slides.md"
ROWS = {"100-slides": "| 100 slides, 1,024", "80-slides": "| 80 slides", "60-slides": "| 60 slides",
        "harder-types": "| 100 slides, types"}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_what_its_predictions_say(name):
    parts = json.loads((PAGE.with_suffix("") / f"{name}.json").read_text(encoding="utf-8"))["folds"]
    ids = [bag for part in parts for bag in part["bags"]]
    assert len(set(ids)) == len(ids)
    positive = np.concatenate([part["labels"] for part in parts]) == 1
    scores = np.concatenate([np.array(part["probabilities"]) for part in parts], axis=1)
    lengths = [run[0] for part in parts for run in part["lengths"]]
    cells = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(ROWS[name])).split(
        "|"
    )
    assert float(cells[3]) == round(float(np.mean([auroc(row, positive)[0] for row in scores])), 3)
    assert float(cells[4]) == round(float(auroc(scores.mean(0), positive)[0]), 3)
    shown = [float(number.replace(",", "")) for number in re.findall(r"[\d,]+", cells[5])[:2]]
    assert shown == [round(min(lengths)), round(max(lengths))]
    assert int(cells[6]) == round(float(np.mean([part["cpu_seconds_per_run"] for part in parts])))


@pytest.fixture
def cohorts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "path", [str(PAGE.parents[2] / "experiments"), *sys.path])
    return importlib.import_module("mechanisms").COHORTS


def test_rows_of_other_mechanisms_are_what_their_predictions_say(cohorts):
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    stored = sorted((PAGE.with_suffix("") / "mechanisms").glob("*.json"))
    assert stored
    for file in stored:
        parts = json.loads(file.read_text(encoding="utf-8"))["folds"]
        positive = np.concatenate([part["labels"] for part in parts]) == 1
        score = float(auroc(np.concatenate([part["probabilities"][0] for part in parts]), positive)[0])
        row = next(line for line in lines if line.startswith(f"| {cohorts[file.stem].title} |"))
        shown, found = (cell.strip() for cell in row.split("|")[2:4])
        assert float(shown) == round(score, 3)
        assert found == f"{sum(part['fitted'][0] for part in parts)} of {len(parts)}"


def test_a_made_slide_keeps_its_rule(cohorts):
    """Pairs within 400 um in positive slides, none within 520 um in negative ones; the same numbers for one seed."""
    cohort = dataclasses.replace(cohorts["pair"], slides=6, features=12, tiles=(150, 200))
    rng = np.random.default_rng(0)
    for label in (0, 1) * 5:
        slide = cohort._slide(rng, label)
        nearest = slide.to(np.flatnonzero(slide.kinds == 8))[slide.kinds == 9].min()
        assert nearest <= 400 if label else nearest > 520
    first, again = cohort.bags(1), cohort.bags(1)
    assert all(np.array_equal(a.features, b.features) and a.label == b.label for a, b in zip(first, again, strict=True))


def test_cohorts_of_unmet_mechanisms_keep_their_rules(cohorts):
    rng = np.random.default_rng(0)
    apart: dict[int, list[float]] = {0: [], 1: []}
    for label in (0, 1) * 5:
        slide = cohorts["far"]._slide(rng, label)
        nearest = slide.to(np.flatnonzero(slide.kinds == 8))[slide.kinds == 9].min()
        assert nearest > 520 if label else nearest <= 400
        slide = cohorts["band"]._slide(rng, label)
        distances = slide.to(np.flatnonzero(slide.kinds == 8))[slide.kinds == 9]
        between = (distances > 450) & (distances < 750)
        assert (between.sum(), (distances <= 250).sum()) == (3 * label, 2)
        assert (between | (distances <= 250) | (distances > 1000)).all()
        slide = cohorts["clump"]._slide(rng, label)
        own = slide.places[slide.kinds == 8]
        widest = np.sqrt(((own[:, None] - own[None]) ** 2).sum(-1)).max()
        assert 16 <= len(own) < 30
        assert widest <= 660 if label else widest > 660
        slide = cohorts["either"]._slide(rng, label)
        assert (slide.kinds == 8).sum() >= 4
        assert label or (slide.kinds == 9).sum() >= 4
        slide = cohorts["nearer"]._slide(rng, label)
        apart[label] += slide.to(np.flatnonzero(slide.kinds == 8))[slide.kinds == 9].tolist()
    assert np.median(apart[1]) == pytest.approx(250, rel=0.35)
    assert np.median(apart[0]) == pytest.approx(550, rel=0.35)

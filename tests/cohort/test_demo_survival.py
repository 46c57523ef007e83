"""`dasmil demo --survival` through its real entry point, in a small form, and the patients that it makes."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dasmil.data.synthetic import MadeCohort
from dasmil.data.synthetic_survival import MadeFollowUp, write_made_follow_up
from dasmil.errors import InputError
from dasmil.stats import FollowUp, harrell

DASMIL = Path(sys.executable).with_name("dasmil")
RUNS = {"das-mil": "DAS-MIL, hazards", "das-mil-cox": "DAS-MIL, Cox", "sa": "self-attention", "max-pool": "max pool"}


@pytest.mark.parametrize("bags", [16, 60])
def test_it_writes_a_page_with_every_model_and_the_ceiling(bags: int, tmp_path: Path):
    """From 16 slides nothing is learned, not even an interval can be told; from 60 the distance."""
    out = tmp_path / "out"
    done = subprocess.run(
        [DASMIL, "demo", "--survival", "--epochs", "1", "--bags", str(bags), "--out", out],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    lines, text = done.stdout.splitlines(), (out / "report.html").read_text()
    assert lines[-2:] == [str(out / "explanation" / "explanation.html"), str(out / "report.html")]
    for run, name in RUNS.items():
        scored = json.loads((out / run / "summary.json").read_text())["splits"]["test"]
        assert any(line.startswith(name) and f"C-index {scored['mean']['c_index']:.3f}" in line for line in lines)
        assert name in text
    with open(out / "cohort" / "labels.csv", newline="") as file:
        test = [row for row in csv.DictReader(file) if row["split"] == "test"]
    follow = FollowUp(np.array([float(row["days"]) for row in test]), np.array([row["dead"] == "1" for row in test]))
    ceiling = float(harrell(follow, np.array([float(row["true_hazard"]) for row in test]))[0])
    assert f"has a C-index of {ceiling:.3f} on these slides" in text
    assert ("raise the risk" in text) == (bags == 60)
    assert ("too few to say" in done.stdout) == (bags == 16)
    assert re.findall(r'aria-label="([^"]+)"', text)[0] == "What raises the risk in a slide"
    assert not re.search(r"https?:|<link|<img|\bsrc=", text)
    both = subprocess.run([DASMIL, "demo", "--survival", "--slides"], capture_output=True, text=True, check=False)
    assert both.returncode == 2
    assert "--slides and --survival were given: a demo shows one" in both.stderr


def test_hazards_and_censoring_are_those_that_were_asked_for():
    near = np.arange(4000) % 2 == 1
    days, dead, hazard = MadeFollowUp(ratio=8.0, mean_days=100.0, censored=0.3).follow_up(near, seed=3)
    assert (~dead).mean() == pytest.approx(0.3, abs=1e-3)
    assert set(np.round(hazard, 6)) == {0.01, 0.08}
    # Deaths per day watched are the hazard, whoever left early.
    rates = [dead[group].sum() / days[group].sum() for group in (~near, near)]
    np.testing.assert_allclose(rates, [0.01, 0.08], rtol=0.1)
    # Without censoring and ties: half of the pairs are of two groups, of which ratio / (1 + ratio) are in order.
    days, dead, hazard = MadeFollowUp(ratio=8.0, censored=0.0).follow_up(near, seed=3)
    assert dead.all()
    assert harrell(FollowUp(days, dead), hazard)[0] == pytest.approx(0.5 * 8 / 9 + 0.25, abs=0.01)


def test_the_table_has_a_row_for_every_slide(tmp_path: Path):
    slides = MadeCohort(tiles=(150, 200), in_features=8)
    table = write_made_follow_up(tmp_path, 4, design=MadeFollowUp(slides), splits=["train"] * 3 + ["test"])
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["slide"] for row in rows] == [path.stem for path in sorted((tmp_path / "bags").glob("*.h5"))]
    assert [float(row["true_hazard"]) for row in rows] == pytest.approx([0.001, 0.032] * 2)


@pytest.mark.parametrize("wrong", [{"ratio": 0.0}, {"mean_days": -1.0}, {"censored": 1.0}])
def test_a_design_that_cannot_be_is_refused(wrong: dict[str, float]):
    with pytest.raises(InputError, match="expected"):
        MadeFollowUp(**wrong)

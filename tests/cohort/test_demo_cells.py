"""`dasmil demo --cells` through its real entry point, in a small form, and the tables of cells that it writes."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dasmil.cli import demo as demo_verb
from dasmil.data.breast_imc import write_breast_cohort
from dasmil.errors import InputError

DASMIL = Path(sys.executable).with_name("dasmil")


def test_it_goes_from_the_table_to_a_report_and_an_explained_image(tmp_path: Path) -> None:
    done = subprocess.run(
        [DASMIL, "demo", "--cells", "--bags", "20", "--out", tmp_path / "out"],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "CC BY 4.0" in done.stderr
    run, lines = tmp_path / "out" / "run", done.stdout.splitlines()
    assert lines[-1] == str(run / "report.html")
    assert lines[-2].endswith(f"dasmil view {run}")
    summary = json.loads((run / "summary.json").read_text())["splits"]["test"]
    assert summary["n"] == 20
    assert f"AUROC {summary['mean']['auroc']:.3f} on test" in done.stdout
    explained = json.loads((tmp_path / "out" / "explanation" / "explanation.json").read_text())
    with open(tmp_path / "out" / "cohort" / "labels.csv", newline="") as file:
        grades = {row["image"]: row["grade"] for row in csv.DictReader(file)}
    assert grades[explained["bag_id"]] == "grade 3"
    page = (tmp_path / "out" / "explanation" / "explanation.html").read_text()
    assert "this bag was in its test set" in page


def test_the_tables_are_those_of_the_cohort(tmp_path: Path) -> None:
    cells, labels = write_breast_cohort(tmp_path)
    with open(labels, newline="") as file:
        rows = list(csv.DictReader(file))
    assert Counter(row["grade"] for row in rows) == {"grade 1-2": 64, "grade 3": 36}
    assert len({row["patient"] for row in rows}) == 100
    with open(cells, newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 285_851
    assert len({row["type"] for row in table}) == 27
    places = np.array([[float(row["x_um"]), float(row["y_um"])] for row in table])
    assert places.min() >= 0
    assert 900 < places.max() < 1000  # fields of at most about a millimetre
    few = write_breast_cohort(tmp_path / "few", 20)[1].read_text().splitlines()[1:]
    assert Counter(row.rpartition(",")[2] for row in few) == {"grade 1-2": 10, "grade 3": 10}


@pytest.mark.parametrize("number", ["19", "101"])
def test_images_that_are_not_there_are_refused(number: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected 20 to 100"):
        demo_verb.app(
            ["--cells", "--bags", number, "--out", str(tmp_path / "o")], exit_on_error=False,
            result_action="return_value",
        )  # fmt: skip
    assert not (tmp_path / "o").exists()

"""The doctor looks at cells: units, spacing, types and labels of a table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dasmil.cli import app
from dasmil.errors import InputError

CELLS = ("--bag-column", "patient", "--unit", "um", "--one-hot", "type")


def table(folder: Path, scales: dict[str, float], names: tuple[str, ...] = ("CD8", "tumour")) -> Path:
    """400 cells of every bag, 10 units apart on a jittered grid, times the scale of the bag."""
    rng, parts = np.random.default_rng(0), []
    for bag, scale in scales.items():
        y, x = np.mgrid[:20, :20]
        place = (np.stack([x.ravel(), y.ravel()], 1) * 10.0 + rng.uniform(-1, 1, (400, 2))) * scale
        kinds = rng.choice(names, 400)
        parts.append(pd.DataFrame({"patient": bag, "x": place[:, 0], "y": place[:, 1], "type": kinds}))
    path = folder / "cells.csv"
    pd.concat(parts).to_csv(path, index=False)
    return path


def doctor(*arguments: object) -> int:
    return app(["doctor", *map(str, arguments)], exit_on_error=False, result_action="return_value")


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    doctor(*arguments, "--json")
    return json.loads(capsys.readouterr().out)


def test_a_healthy_table_of_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path, {f"p{i:02d}": 1.0 for i in range(12)})
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(["patient,label", *(f"p{i:02d},{i % 2}" for i in range(12))]))
    arguments = (path, *CELLS, "--labels", labels, "--slide-column", "patient")
    assert doctor(*arguments) == 0
    printed = capsys.readouterr().out
    assert "12 bags, 4,800 cells, 400 to 400 in a bag" in printed
    assert "12 slides of 12 patients; 6 of class 0, 6 of class 1" in printed
    assert "Nothing wrong found." in printed
    assert "p00" not in printed  # nothing is wrong with it: no row among a dozen
    found = answer(capsys, *arguments)
    assert [row["slide"] for row in found["rows"]] == [f"p{i:02d}" for i in range(12)]
    assert found["rows"][0]["stride_um"] == pytest.approx(9, abs=1)
    places = pd.read_csv(path)[["x", "y"]].to_numpy()[:400]
    within = (np.linalg.norm(places[:, None] - places, axis=2) <= found["radius_um"]).sum(1) - 1
    assert 70 <= np.median(within) <= 90


def test_units_types_and_bags_that_were_mixed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scales = {f"p{i}": 1.0 for i in range(5)} | {"millimetres": 0.001}
    found = answer(capsys, table(tmp_path, scales, ("CD8", "cd8 ", "tumour")), *CELLS)
    checks = {finding["check"]: finding for finding in found["findings"]}
    assert set(checks) == {"spacing", "mixed scales", "cell types"}
    assert checks["mixed scales"]["slides"] == ["millimetres"]
    assert "'CD8' and 'cd8 ' count as 2 types" in checks["cell types"]["message"]
    assert found["healthy"]


def test_few_cells_and_columns_without_meaning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"a,{10 * i},0,{i},3" for i in range(8)]
    (tmp_path / "cells.csv").write_text("\n".join(["patient,x,y,size,batch", *rows]))
    found = answer(capsys, tmp_path / "cells.csv", "--bag-column", "patient", "--unit", "um")
    said = {finding["check"]: finding["message"] for finding in found["findings"]}
    assert said == {"few cells": "a: 8 cells", "constant features": "columns with one value for all cells: batch"}
    assert found["radius_um"] is None  # eight cells have no eighty neighbours


def test_options_of_cells_for_a_folder_of_files_and_the_other_way_round(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--one-hot is for tables of cells, but .* is a folder of feature files"):
        doctor(tmp_path, "--one-hot", "type")
    path = table(tmp_path, {"a": 1.0})
    with pytest.raises(InputError, match="is a table of cells: name its bag column with --bag-column and the --unit"):
        doctor(path)

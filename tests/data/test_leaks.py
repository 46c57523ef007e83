"""A column of a table of cells that says the label, or names the bag, is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dasmil.data.doctor_cells import check_cells
from dasmil.data.labels import LabelRow
from dasmil.data.leaks import leaking_columns
from dasmil.errors import DataError
from dasmil.study.spec import BagSpec, CohortSpec, cohort_lines

N, CELLS = 24, 40


def table(path: Path, **columns: np.ndarray) -> CohortSpec:
    draw = np.random.default_rng(0)
    frame = {"patient": np.repeat([f"p{i:02d}" for i in range(N)], CELLS)}
    frame |= {name: draw.uniform(0, 500, N * CELLS) for name in ("x", "y")}
    frame |= {"size": draw.normal(size=N * CELLS), **columns}
    pd.DataFrame(frame).to_csv(path / "cells.csv", index=False)
    (path / "labels.csv").write_text("\n".join(["patient,label", *(f"p{i:02d},{'ab'[i % 2]}" for i in range(N))]))
    return CohortSpec(bags=path / "cells.csv", labels=path / "labels.csv", bag_column="patient", unit="um")


def test_columns_that_describe_the_bag_are_told(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    stage = np.repeat(np.arange(N) % 2, CELLS) + 0.05 * draw.normal(size=N * CELLS)
    row = np.arange(N * CELLS)
    weak = np.repeat(np.arange(N) % 2, CELLS) * 0.5 + draw.normal(size=N * CELLS)  # a sign, as models look for
    spec = table(tmp_path, stage=stage, row=row, weak=weak)
    said = cohort_lines(spec.load(read_all=True))
    assert "Features of a cell: size, stage, row, weak" in said
    warned = [line for line in said if line.startswith("Warning: leak")]
    assert len(warned) == 2
    assert "the columns 'stage' have nearly one value a bag, and it says the label" in warned[0]
    *_, checkup = check_cells(spec.read_cells(), spec.read_labels())
    assert [one.message[:30] for one in checkup.findings if one.check == "leak"] == [
        "the columns 'stage' have nearl", "the columns 'row' have nearly "
    ]  # fmt: skip


def test_ordinary_columns_and_categories_are_no_leak(tmp_path: Path) -> None:
    bags = table(tmp_path).read_cells()
    assert leaking_columns(bags, [i % 2 for i in range(N)]) == []
    assert leaking_columns(bags[:4], [0, 1, 0, 1]) == []


def test_two_survival_times_of_one_patient_are_refused(tmp_path: Path) -> None:
    table(tmp_path)
    rows = ["slide,patient,days,dead", *(f"p{i:02d},q{i // 2},{100 + i},1" for i in range(N))]
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    how = {"bags": tmp_path / "cells.csv", "labels": tmp_path / "labels.csv", "bag_column": "patient", "unit": "um"}
    spec = BagSpec(**how, time_column="days", event_column="dead")
    with pytest.raises(DataError, match=r"slides disagree: 12 patients .* --accept slides-disagree"):
        spec.load(read_all=True)
    assert (
        len(BagSpec(**how, time_column="days", event_column="dead", accept="slides-disagree").load(read_all=True)) == N
    )


def test_doctor_needs_no_labels(tmp_path: Path) -> None:
    *_, checkup = check_cells(table(tmp_path).read_cells(), [LabelRow("p00", "a")])
    assert not any(one.check == "leak" for one in checkup.findings)

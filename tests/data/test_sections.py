"""Fields of one patient that lie on each other become sections; fields that lie side by side do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from dasmil.data.tables import read_table


def table(path: Path, fields: list, *, apart: float = 0.0, column: str = "image") -> Path:
    """Three patients with two fields of 500 x 500 um each, `apart` from each other."""
    rng = np.random.default_rng(0)
    rows = []
    for patient in range(3):
        for k, field in enumerate(fields):
            name = field if isinstance(field, int) else f"{field}-{patient}"
            rows += [(f"p{patient}", name, x + k * apart, y, x / 500) for x, y in rng.uniform(0, 500, (40, 2))]
    pd.DataFrame(rows, columns=["patient", column, "x", "y", "marker"]).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("fields", [["a", "b"], [1, 2]])
def test_fields_on_each_other_are_sections(tmp_path: Path, fields: list) -> None:
    bags = read_table(table(tmp_path / "cells.csv", fields), bag="patient", unit="um")
    for number, bag in enumerate(bags):
        assert torch.bincount(bag.section).tolist() == [40, 40]
        assert bag.metadata["feature_names"] == ["marker"], "the field is no feature"
        names = [str(f) if isinstance(f, int) else f"{f}-{number}" for f in fields]
        assert bag.metadata["section_names"] == names
        assert bag.metadata["coords_rule"].endswith("fields of 'image' lie on each other: each is a section")
    first = pd.read_csv(tmp_path / "cells.csv").query("patient == 'p1'")
    expected = first["image"].map({name: k for k, name in enumerate(first["image"].unique())})
    assert bags[1].section.tolist() == expected.tolist()


def test_fields_side_by_side_share_their_frame(tmp_path: Path) -> None:
    bags = read_table(table(tmp_path / "cells.csv", ["a", "b"], apart=600), bag="patient", unit="um")
    assert all(bag.section is None for bag in bags)


def test_types_and_bags_of_one_field_are_no_sections(tmp_path: Path) -> None:
    path = table(tmp_path / "cells.csv", ["a", "b"], column="kind")
    frame = pd.read_csv(path)
    frame["kind"] = frame["kind"].str[0]  # types occur in every patient
    frame.to_csv(path, index=False)
    assert all(bag.section is None for bag in read_table(path, bag="patient", unit="um", features=["marker"]))
    one = read_table(table(tmp_path / "one.csv", ["a"]), bag="patient", unit="um")
    assert all(bag.section is None for bag in one)


def test_the_fields_of_the_lung_patients(tmp_path: Path) -> None:
    cells = Path(__file__).parents[3] / "shared" / "data" / "lung" / "cells.csv.gz"
    if not cells.is_file():
        pytest.skip("the lung cohort is not here")
    whole = pd.read_csv(cells)
    few = whole[whole["patient"].isin(whole["patient"].unique()[:3])]
    path = tmp_path / "cells.csv"
    few.to_csv(path, index=False)
    bags = read_table(path, bag="patient", unit="um", x="x_um", y="y_um")
    for bag in bags:
        images = few[few["patient"].astype(str) == bag.bag_id]["image"].nunique()
        assert bag.section is not None
        assert len(bag.section.unique()) == images
        assert "image" not in bag.metadata["feature_names"]

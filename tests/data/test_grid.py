"""CLAM files without a declared tile: a slide of scattered tiles takes the stride of the others, and it is said."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from dasmil.data.cohort import load_cohort
from dasmil.data.scale import Scale, Scales
from dasmil.errors import ScaleError

SIDE = 224


def clam(path: Path, places: list[tuple[int, int]]) -> None:
    with h5py.File(path, "w") as file:
        file["features"] = np.zeros((len(places), 3), np.float32)
        file["coords"] = np.array(places, np.int64) * SIDE + 100


def slideflow(path: Path, places: list[tuple[int, int]]) -> None:
    torch.save(torch.zeros(len(places), 3), path.with_suffix(".pt"))
    np.savez(path.with_suffix(".index.npz"), np.array(places, np.int64) * SIDE + 100)


DENSE = [(x, y) for x in range(4) for y in range(4)]
SCATTERED = [(0, 0), (7, 2), (3, 9)]


@pytest.mark.parametrize("scales", [Scales(Scale(mpp=0.5)), Scales(Scale(tile_um=112.0))])
def test_scattered_tiles_are_centred_as_those_of_other_slides(tmp_path: Path, scales: Scales) -> None:
    clam(tmp_path / "a.h5", DENSE)
    clam(tmp_path / "b.h5", SCATTERED)
    cohort = load_cohort(tmp_path, scales=scales)
    for bag, places in zip(cohort, (DENSE, SCATTERED), strict=True):
        expected = (np.array(places) * SIDE + 100 + SIDE / 2) * 0.5
        np.testing.assert_allclose(bag.coords.numpy(), expected, rtol=1e-6)
        assert bag.metadata["tile_um"] == pytest.approx(112.0)
    (line,) = cohort.report.grid
    assert "1 slides have too few tiles side by side to show their stride (b)" in line
    assert "they take the 224 px of the other 1" in line
    assert line in cohort.report.lines()


def test_slideflow_takes_the_scale_of_the_grid(tmp_path: Path) -> None:
    slideflow(tmp_path / "a", DENSE)
    slideflow(tmp_path / "b", SCATTERED)
    bags = list(load_cohort(tmp_path, scales=Scales(Scale(tile_um=112.0))))
    np.testing.assert_allclose(bags[1].coords.numpy(), (np.array(SCATTERED) * SIDE + 100) * 0.5, rtol=1e-6)


def test_a_sparser_slide_lies_on_the_same_grid(tmp_path: Path) -> None:
    clam(tmp_path / "a.h5", DENSE)
    clam(tmp_path / "b.h5", SCATTERED)
    clam(tmp_path / "c.h5", [(2 * x, 2 * y) for x, y in DENSE])
    assert "they take the 224 px of the other 2" in load_cohort(tmp_path, scales=Scales(Scale(mpp=0.5))).report.grid[0]


def test_where_no_slide_shows_a_stride_it_is_said(tmp_path: Path) -> None:
    clam(tmp_path / "a.h5", SCATTERED)
    clam(tmp_path / "b.h5", SCATTERED[:2])
    report = load_cohort(tmp_path, scales=Scales(Scale(mpp=0.5))).report
    assert "no other slide shows one (a, b): their positions are corners" in report.grid[0]
    with pytest.raises(ScaleError, match="tiles show no stride"):
        load_cohort(tmp_path, scales=Scales(Scale(tile_um=112.0)))

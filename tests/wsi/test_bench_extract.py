from __future__ import annotations

import numpy as np
import pytest

from benchmarks.extract import _measure_pipeline, _measure_stain, make_slide
from dasmil.wsi.config import TissueConfig
from dasmil.wsi.reader import Slide
from dasmil.wsi.tissue import find_tissue


def test_the_made_up_slide_is_a_pyramid_with_an_ellipse_of_tissue(tmp_path):
    make_slide(tmp_path / "made.tif", 4096)
    with Slide(tmp_path / "made.tif") as slide:
        assert [(level.width, level.downsample) for level in slide.levels] == [(4096, 1), (1024, 4), (256, 16)]
        assert slide.mpp == pytest.approx(0.5)
        picture = slide.thumbnail(8.0)
        fine, coarse = slide.read_tile(800, 800, 256, 512), slide.read_tile(800, 800, 256, 128)
    found = find_tissue(picture, 8.0, TissueConfig()).mask
    assert found.mean() == pytest.approx(np.pi * 0.44 * 0.4, rel=0.03)
    # The levels show the same: blocks of 4 x 4 pixels of one have the colours of the next.
    means = fine.reshape(128, 4, 128, 4, 3).mean(axis=(1, 3))
    beside = np.abs(means[:, 1:] - coarse[:, :-1]).mean()
    assert np.abs(means - coarse).mean() < 0.6 * beside


def test_both_sides_of_the_comparison_read_the_same_tiles(tmp_path):
    make_slide(tmp_path / "made.tif", 2048)
    row = _measure_pipeline(tmp_path / "made.tif", 1)
    assert (row["width"], row["tiles"], row["level"]) == (
        2048,
        12,
        0,
    )  # but the corners, of which the ellipse covers 6 %
    assert min(row["bare"], row["pipeline"], row["one_worker"], row["processor"]["bare"]) > 0


def test_the_stains_compared_agree(real_slide):
    row = _measure_stain(real_slide, 1)
    assert row["largest_difference"] <= 1
    assert row["tiles"] >= 15
    assert min(row["dasmil"], row["torchstain"]) > 0

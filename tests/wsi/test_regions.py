"""Extraction inside regions: the tiles that are kept are those of the whole slide that lie half inside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dasmil.data.store import read_bag
from dasmil.wsi.batch import extract
from dasmil.wsi.config import ExtractConfig, TissueConfig

FLAT = TissueConfig(mask_um=4, sharpness=0, blank_share=0)


def outline(path: Path, name: str, box_um: tuple[float, float, float, float], mpp: float) -> None:
    left, top, right, bottom = (length / mpp for length in box_um)
    ring = [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]
    shape = {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [ring]}, "properties": {"name": name}}
    path.write_text(json.dumps(shape))


def test_tiles_inside_and_outside_of_regions(made_slide, tmp_path: Path) -> None:
    path = made_slide("made.tif", mpp=0.5, factors=(1, 2, 4))
    (tmp_path / "roi").mkdir()
    box = (0.0, 0.0, 500.0, 384.0)  # the first piece of tissue; a tile ends at 512
    outline(tmp_path / "roi" / "made.geojson", "left", box, 0.5)
    common = {"tile_um": 64, "tile_px": 16, "stain": "none", "encoder": "none", "tissue": FLAT}
    bags = {}
    for name, more in (
        ("all", {}),
        ("in", {"roi": str(tmp_path / "roi")}),
        ("out", {"exclude": str(tmp_path / "roi")}),
    ):
        summary = extract([path], tmp_path / name, ExtractConfig(**common, **more))
        assert summary.results[0].status == "done"
        bags[name] = read_bag(tmp_path / name / "made.h5")
    x, y = bags["all"].coords.numpy().T
    inside = (x < 512) & (y < 384)
    assert 0 < inside.sum() < len(x)
    np.testing.assert_array_equal(bags["in"].coords, bags["all"].coords[inside])
    np.testing.assert_array_equal(bags["out"].coords, bags["all"].coords[~inside])
    np.testing.assert_array_equal(bags["in"].features, bags["all"].features[inside])


def test_other_regions_make_the_bag_again_and_none_is_a_reason(made_slide, tmp_path: Path) -> None:
    path = made_slide("made.tif", mpp=0.5, factors=(1, 2, 4))
    roi = tmp_path / "roi"
    roi.mkdir()
    config = ExtractConfig(64, 16, "none", "none", tissue=FLAT, roi=str(roi))
    outline(roi / "made.geojson", "left", (0.0, 0.0, 500.0, 384.0), 0.5)
    assert extract([path], tmp_path / "bags", config).results[0].status == "done"
    assert extract([path], tmp_path / "bags", config).results[0].status == "skipped"
    outline(roi / "made.geojson", "nothing", (0.0, 700.0, 64.0, 768.0), 0.5)
    found = extract([path], tmp_path / "bags", config).results[0]
    assert found.status == "failed"  # refused, because what is there was made with other settings
    assert "other settings" in str(found.reason) or "lies in the chosen regions" in str(found.reason)

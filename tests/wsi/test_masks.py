"""Tissue of other programs: outlines, pictures and patches name the same tiles; other files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from dasmil.data.store import read_bag
from dasmil.errors import DataError
from dasmil.wsi.batch import extract
from dasmil.wsi.config import ExtractConfig, TissueConfig
from dasmil.wsi.masks import find_mask, read_mask

FLAT = TissueConfig(mask_um=4, sharpness=0, blank_share=0, fraction=0.6)
BOX = (128.0, 64.0, 384.0, 320.0)  # um: tiles of 64 um in columns 2 to 5, rows 1 to 4; the slide is 1,024 x 768 um
MPP = 0.5


def outlines(path: Path) -> None:
    """As TRIDENT writes contours: a polygon with a hole, in level-0 pixels."""
    left, top, right, bottom = (v / MPP for v in BOX)
    ring = [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]
    hole = [[256, 128], [384, 128], [384, 256], [256, 256], [256, 128]]  # the tile in column 2, row 1
    shape = {"type": "Polygon", "coordinates": [ring, hole]}
    feature = {"type": "Feature", "properties": {"tissue_id": 0}, "geometry": shape}
    path.write_text(json.dumps({"type": "FeatureCollection", "name": "made", "features": [feature]}))


def picture(path: Path) -> None:
    mask = np.zeros((96, 128), np.uint8)  # 8 um a pixel
    mask[8:40, 16:48] = 1
    mask[8:16, 16:24] = 0
    Image.fromarray(mask * 255).save(path)


def patches(path: Path, trident: bool = False) -> None:
    """As CLAM (or TRIDENT) writes coordinates: top left corners of patches, here of half a tile."""
    corners = [(x, y) for x in range(256, 768, 64) for y in range(128, 640, 64) if x >= 384 or y >= 256]
    with h5py.File(path, "w") as file:
        found = file.create_dataset("coords", data=np.array(corners))
        if trident:
            found.attrs["patch_size_level0"] = 64
        else:
            found.attrs["patch_size"], found.attrs["downsample"] = 32, np.array([2.0, 2.0])


WRITE = {
    "made.geojson": outlines,
    "made.png": picture,
    "made_mask.tif": picture,
    "made.h5": patches,
    "made_patches.h5": lambda path: patches(path, True),
}


@pytest.mark.parametrize("name", WRITE)
def test_tiles_are_those_of_the_mask(made_slide, tmp_path: Path, name: str) -> None:
    path = made_slide("made.tif", mpp=MPP, factors=(1, 2, 4))
    folder = tmp_path / "masks"
    folder.mkdir()
    WRITE[name](folder / name)
    config = ExtractConfig(64, 16, "none", "none", tissue=FLAT, masks=str(folder))
    summary = extract([path], tmp_path / "bags", config)
    assert summary.results[0].status == "done", summary.results[0].reason
    bag = read_bag(tmp_path / "bags" / "made.h5")
    tiles = {(int(x // 64), int(y // 64)) for x, y in bag.coords.numpy()}
    assert tiles == {(c, r) for c in range(2, 6) for r in range(1, 5)} - {(2, 1)}
    assert extract([path], tmp_path / "bags", config).results[0].status == "skipped"


def test_a_slide_without_mask_fails_and_is_not_searched_otherwise(made_slide, tmp_path: Path) -> None:
    slides = [made_slide("made.tif", mpp=MPP), made_slide("other.tif", mpp=MPP)]
    folder = tmp_path / "masks"
    folder.mkdir()
    picture(folder / "made.png")
    config = ExtractConfig(64, 16, "none", "none", tissue=FLAT, masks=str(folder))
    done, failed = extract(slides, tmp_path / "bags", config).results
    assert (done.status, failed.status) == ("done", "failed")
    assert "has no mask of 'other'" in str(failed.reason)
    Image.fromarray(np.full((96, 128), 255, np.uint8)).save(folder / "made.png")
    again = extract(slides[:1], tmp_path / "bags", config).results[0]
    assert again.status == "failed"
    assert "other settings" in str(again.reason), "another mask is another result"


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name in ("a.pkl", "b.jpg"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(DataError, match="is no mask that can be read"):
            find_mask(tmp_path, name[0])
    picture(tmp_path / "c.png")
    picture(tmp_path / "c_mask.png")
    with pytest.raises(DataError, match="several masks"):
        find_mask(tmp_path, "c")
    refused = {
        "flat.png": (np.ones((10, 90), np.uint8), "another slide"),
        "rgb.png": (np.dstack([np.full((96, 128), k, np.uint8) for k in (9, 80, 200)]), "has colours"),
        "none.png": (np.zeros((96, 128), np.uint8), "marks nothing"),
    }
    for name, (pixels, message) in refused.items():
        Image.fromarray(pixels).save(tmp_path / name)
        with pytest.raises(DataError, match=message):
            read_mask(tmp_path / name, 2048, 1536, MPP, 8.0)
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(DataError, match="cannot be read as a picture"):
        read_mask(tmp_path / "text.png", 2048, 1536, MPP, 8.0)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file.create_dataset("coords", data=np.zeros((3, 2)))
    with pytest.raises(DataError, match="patch_size_level0"):
        read_mask(tmp_path / "d.h5", 2048, 1536, MPP, 8.0)

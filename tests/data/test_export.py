"""Other tools' layouts: names, types and coordinates as their readers expect them."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch

from dasmil.data.export import export_bag
from dasmil.data.store import read_bag
from dasmil.errors import DataError, InputError
from dasmil.types import Bag

METADATA = {"mpp": 0.5, "tile_um": 256.0, "tile_px": 224, "encoder": "null", "slide_width_px": 4000}
CORNERS_UM = np.array([[0, 0], [256, 0], [512, 768]], np.float32)


def make_bag(**changes) -> Bag:
    fields = {
        "features": np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4),
        "coords": CORNERS_UM + 128,
        "unit": "um",
        "bag_id": "slide-1",
        "metadata": dict(METADATA),
    }
    return Bag(**(fields | changes))


def in_pixels() -> Bag:
    return make_bag(coords=(CORNERS_UM + 128) / 0.5, unit="px")


@pytest.mark.parametrize("bag", [make_bag(), in_pixels()], ids=["um", "px"])
def test_stamp(tmp_path, bag):
    export_bag(bag, tmp_path / "a.h5", "stamp")
    with h5py.File(tmp_path / "a.h5") as file:
        assert set(file) == {"feats", "coords"}
        assert file["feats"].dtype == np.float16
        np.testing.assert_array_equal(file["feats"][:], bag.features.half().numpy())
        np.testing.assert_array_equal(file["coords"][:], CORNERS_UM)
        assert file["coords"].dtype == np.float32
        expected = {"unit": "um", "tile_size_um": 256.0, "tile_size_px": 224, "extractor": "null", "feat_type": "tile"}
        assert dict(file.attrs) == expected


@pytest.mark.parametrize("bag", [make_bag(), in_pixels()], ids=["um", "px"])
def test_trident(tmp_path, bag):
    export_bag(bag, tmp_path / "a.h5", "trident")
    with h5py.File(tmp_path / "a.h5") as file:
        assert set(file) == {"features", "coords"}
        assert file["features"].dtype == np.float32
        np.testing.assert_array_equal(file["features"][:], bag.features.numpy())
        np.testing.assert_array_equal(file["coords"][:], [[0, 0], [512, 0], [1024, 1536]])
        assert file["coords"].dtype == np.int64
        assert dict(file["coords"].attrs) == {
            "patch_size": 224,
            "patch_size_level0": 512,
            "level0_magnification": 20,
            "target_magnification": 8.75,  # 224 px of 512 px at 20x
            "overlap": 0,
            "name": "slide-1",
            "level0_width": 4000,
        }


def test_trident_whole_magnification_is_an_integer(tmp_path):
    export_bag(make_bag(metadata=METADATA | {"mpp": 0.25, "tile_px": 512}), tmp_path / "a.h5", "trident")
    with h5py.File(tmp_path / "a.h5") as file:
        attributes = dict(file["coords"].attrs)
    assert attributes["target_magnification"] == 20
    assert np.issubdtype(type(attributes["target_magnification"]), np.integer)
    assert (attributes["level0_magnification"], attributes["patch_size_level0"]) == (40, 1024)


def test_clam(tmp_path):
    bag = make_bag(metadata={"mpp": 0.5, "tile_um": 256.0})
    export_bag(bag, tmp_path / "a.h5", "clam")
    with h5py.File(tmp_path / "a.h5") as file:
        assert set(file) == {"features", "coords"}
        np.testing.assert_array_equal(file["features"][:], bag.features.numpy())
        np.testing.assert_array_equal(file["coords"][:], [[0, 0], [512, 0], [1024, 1536]])
        assert (file["features"].dtype, file["coords"].dtype) == (np.float32, np.int32)
        assert not dict(file.attrs)
        assert not dict(file["coords"].attrs)


def test_corners_are_the_nearest_pixels(tmp_path):
    corners = np.array([[0, 0], [512.6, 1000.4]])
    bag = make_bag(features=np.zeros((2, 4)), coords=corners * 0.499 + 128, metadata=METADATA | {"mpp": 0.499})
    export_bag(bag, tmp_path / "a.h5", "clam")
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["coords"][:].tolist() == [[0, 0], [513, 1000]]


def test_own_layout(tmp_path):
    export_bag(make_bag(), tmp_path / "a.h5", "dasmil")
    assert torch.equal(read_bag(tmp_path / "a.h5").coords, make_bag().coords)


@pytest.mark.parametrize(
    ("format", "missing"),
    [
        ("stamp", "tile_um"),
        ("stamp", "tile_px"),
        ("stamp", "encoder"),
        ("trident", "mpp"),
        ("trident", "tile_px"),
        ("clam", "mpp"),
        ("clam", "tile_um"),
    ],
)
def test_missing_metadata_is_named(tmp_path, format, missing):
    metadata = {name: value for name, value in METADATA.items() if name != missing}
    with pytest.raises(DataError, match=f"'slide-1': metadata has no '{missing}', which a {format} file needs"):
        export_bag(make_bag(metadata=metadata), tmp_path / "a.h5", format)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("format", "changes", "message"),
    [
        ("stamp", {"coords": np.zeros((3, 3))}, "coords have 3 dimensions"),
        ("clam", {"section": np.array([0, 0, 1])}, "several sections"),
        ("clam", {"features": np.zeros((3, 2, 2))}, r"features have shape \(3, 2, 2\)"),
        ("stamp", {"features": np.full((3, 2), 1e6)}, "too large for the float16"),
        ("trident", {"metadata": METADATA | {"mpp": 5.0}}, "too coarse"),
        ("clam", {"metadata": METADATA | {"mpp": "0.5"}}, "'mpp' is '0.5', expected a positive number"),
    ],
)
def test_bags_that_do_not_fit_are_refused(tmp_path, format, changes, message):
    with pytest.raises(DataError, match=message):
        export_bag(make_bag(**changes), tmp_path / "a.h5", format)
    assert list(tmp_path.iterdir()) == []


def test_unknown_format(tmp_path):
    with pytest.raises(InputError, match="Did you mean 'trident'"):
        export_bag(make_bag(), tmp_path / "a.h5", "tridant")  # pyright: ignore[reportArgumentType]

"""Bag files: what goes in comes out, and broken files say so in one line."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dasmil
from dasmil.data import store
from dasmil.errors import DataError, InputError
from dasmil.types import Bag

METADATA = {
    "tile_um": 256.0,
    "tile_px": 224,
    "mpp": 0.499,
    "encoder": "null",
    "tissue": {"threshold": 0.5, "steps": ["otsu", "close"], "pen": None},
    "looks_like_json": '{"a": 1}',
    "flag": True,
    "empty": "",
    "nothing": None,
    "levels": (1, 2),
    "µ": "größe",
    "not_utf8": "slide\udc80.svs",
    "nul": "a\0b",
    "big": 2**70,
    "numpy": np.float32(0.5),
}


def make_bag(n: int = 5, **changes) -> Bag:
    rng = np.random.default_rng(0)
    fields = {
        "features": rng.standard_normal((n, 3)).astype(np.float32),
        "coords": rng.uniform(0, 1000, (n, 2)).astype(np.float32),
        "unit": "um",
        "bag_id": "slide-1",
        "label": 1,
        "patient_id": "p1",
        "instance_labels": np.arange(n, dtype=np.int32),
        "key_instances": np.arange(n) % 2 == 0,
        "section": np.arange(n) // 3,
        "metadata": dict(METADATA),
    }
    return Bag(**(fields | changes))


def assert_same(found: Bag, expected: Bag) -> None:
    for name in ("features", "coords", "instance_labels", "key_instances", "section"):
        a, b = getattr(found, name), getattr(expected, name)
        assert (a is None) == (b is None), name
        if b is not None:
            assert a.dtype == b.dtype, name
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    for name in ("unit", "bag_id", "label", "patient_id"):
        assert getattr(found, name) == getattr(expected, name)


def test_every_field_comes_back(tmp_path):
    bag = make_bag()
    dasmil.write_bag(tmp_path / "a.h5", bag)
    found = dasmil.read_bag(tmp_path / "a.h5")
    assert_same(found, bag)
    expected = METADATA | {"levels": [1, 2], "numpy": 0.5, "dasmil_version": dasmil.__version__}
    assert found.metadata == expected
    assert {k: type(v) for k, v in found.metadata.items()} == {k: type(v) for k, v in expected.items()}
    store.write_bag(tmp_path / "b.h5", found)  # a second trip changes nothing
    assert store.read_bag(tmp_path / "b.h5").metadata == expected


def test_optional_fields_stay_absent(tmp_path):
    bag = make_bag(label=None, patient_id=None, instance_labels=None, key_instances=None, section=None, metadata={})
    store.write_bag(tmp_path / "a.h5", bag)
    assert_same(store.read_bag(tmp_path / "a.h5"), bag)


def test_label_and_names_can_be_given(tmp_path):
    store.write_bag(tmp_path / "a.h5", make_bag())
    found = store.read_bag(tmp_path / "a.h5", label=0, patient_id="p9", bag_id="x")
    assert (found.label, found.patient_id, found.bag_id) == (0, "p9", "x")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.uint8, torch.int64])
def test_dtype_none_keeps_the_features(tmp_path, dtype):
    bag = make_bag(features=torch.arange(24).reshape(2, 3, 2, 2).to(dtype), **no_instances(2))
    store.write_bag(tmp_path / "a.h5", bag)
    assert_same(store.read_bag(tmp_path / "a.h5"), bag)


def no_instances(n: int) -> dict:
    return {"coords": np.zeros((n, 2)), "instance_labels": None, "key_instances": None, "section": None}


def test_float16_rounds_and_refuses_overflow(tmp_path):
    bag = make_bag()
    store.write_bag(tmp_path / "a.h5", bag, dtype="float16")
    assert torch.equal(store.read_bag(tmp_path / "a.h5").features, bag.features.half())
    large = make_bag(features=np.full((5, 3), 1e5, np.float32))
    with pytest.raises(DataError, match="15 feature values are too large for float16"):
        store.write_bag(tmp_path / "b.h5", large, dtype="float16")
    store.write_bag(tmp_path / "c.h5", make_bag(features=torch.full((5, 3), 1e30, dtype=torch.bfloat16)))
    assert store.read_bag(tmp_path / "c.h5").features.dtype == torch.float32
    with pytest.raises(InputError, match="dtype is 'int8'"):
        store.write_bag(tmp_path / "d.h5", bag, dtype="int8")  # pyright: ignore[reportArgumentType]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5", "c.h5"]


def test_plain_h5py_reads_it(tmp_path):
    store.write_bag(tmp_path / "a.h5", make_bag(), dtype="float16")
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["features"].dtype == np.float16
        assert file["features"].chunks is None
        assert file["coords"].dtype == np.float32
        assert file["key_instances"][:].tolist() == [1, 0, 1, 0, 1]
        assert file.attrs["format"] == "dasmil-bag"
        assert file.attrs["unit"] == "um"
        assert file.attrs["tile_um"] == 256.0
        assert json.loads(file.attrs["tissue"]) == METADATA["tissue"]


def test_info_reads_no_arrays(tmp_path, monkeypatch):
    path = tmp_path / "a.h5"
    store.write_bag(path, make_bag())
    read: list[str] = []
    of_dataset = h5py.Dataset.__getitem__
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda self, at: read.append(self.name) or of_dataset(self, at))
    info = store.read_bag_info(path)
    assert (info.n, info.feature_shape) == (5, (3,))
    assert (info.bag_id, info.unit, info.label, info.patient_id) == ("slide-1", "um", 1, "p1")
    assert info.has == ("section", "instance_labels", "key_instances")
    assert info.metadata["mpp"] == 0.499
    assert not read
    np.testing.assert_array_equal(store.read_coords(path), make_bag().coords.numpy())
    assert read == ["/coords"]


def change(path: Path, **attributes) -> None:
    with h5py.File(path, "r+") as file:
        for name, value in attributes.items():
            if value is None:
                del file.attrs[name]
            else:
                file.attrs[name] = value


def replace(path: Path, name: str, data) -> None:
    with h5py.File(path, "r+") as file:
        if name in file:
            del file[name]
        if data is not None:
            file.create_dataset(name, data=data)


BREAKS = {
    "no attribute 'unit'": lambda p: change(p, unit=None),
    "unit 'mm', expected 'um'": lambda p: change(p, unit="mm"),
    "not a dasmil bag: no attribute 'format'": lambda p: change(p, format=None),
    "format version 2; this dasmil .* reads up to 1": lambda p: change(p, format_version=2),
    "format_version is None": lambda p: change(p, format_version=None),
    "label is 'tumour'": lambda p: change(p, label="tumour"),
    "label is -1": lambda p: change(p, label=-1),
    "'tissue' is not valid JSON": lambda p: change(p, tissue="{"),
    "'json_attributes' is 'tissue'": lambda p: change(p, json_attributes="tissue"),
    "has no dataset 'features'; it holds coords": lambda p: replace(p, "features", None),
    "has no dataset 'coords'; it holds features, .*, expected features and coords .* write the bag again": lambda p: (
        replace(p, "coords", None)
    ),
    "5 rows of features but 4 of coords": lambda p: replace(p, "coords", np.zeros((4, 2))),
    "5 rows of features but 6 of section": lambda p: replace(p, "section", np.zeros(6, int)),
    r"coords have shape \(5, 4\)": lambda p: replace(p, "coords", np.zeros((5, 4))),
    r"features have shape \(5,\)": lambda p: replace(p, "features", np.zeros(5)),
    r"features have shape \(0, 3\)": lambda p: replace(p, "features", np.zeros((0, 3))),
    "2 of 5 instances have NaN": lambda p: replace(p, "coords", [[0, 0], [np.nan, 0], [1, 1], [2, np.inf], [3, 3]]),
    "features is a dataset of object": lambda p: replace(p, "features", [["a"], ["b"], ["c"], ["d"], ["e"]]),
    "section is a dataset of float64, expected integers": lambda p: replace(p, "section", np.zeros(5)),
    "key_instances hold values other": lambda p: replace(p, "key_instances", np.arange(5)),
    "the file is empty": lambda p: p.write_bytes(b""),
    "not an HDF5 file": lambda p: p.write_bytes(b"PK\3\4 something else entirely" * 100),
    "truncated or damaged": lambda p: p.write_bytes(p.read_bytes()[:-500]),
    "no such file": lambda p: p.unlink(),
}


@pytest.mark.parametrize("message", BREAKS)
def test_broken_files_are_named_and_explained(tmp_path, message):
    path = tmp_path / "broken.h5"
    store.write_bag(path, make_bag())
    BREAKS[message](path)
    with pytest.raises(DataError, match=message) as caught:
        store.read_bag(path)
    assert "broken.h5" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"unit": "px"}, "'unit' is 'px': that name is kept"),
        ({"format_version": 1}, "that name is kept"),
        ({"x": {1: "a"}}, "'x' holds dict"),
        ({"x": [np.zeros(3)]}, "'x' holds ndarray"),
        ({"": 1}, "expected non-empty text"),
        ({3: 1}, "expected non-empty text"),
    ],
)
def test_metadata_that_cannot_be_kept_is_refused(tmp_path, metadata, message):
    with pytest.raises(DataError, match=message):
        store.write_bag(tmp_path / "a.h5", make_bag(metadata=metadata))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.h5"
    store.write_bag(path, make_bag())
    before = path.read_bytes()

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(DataError, match=r"the disk is full: .*a\.h5 could not be written"):
        store.write_bag(path, make_bag(n=7))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match="does not exist"):
        store.write_bag(tmp_path / "nowhere" / "a.h5", make_bag())


text = st.text(max_size=20)
plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), text)
nested = st.recursive(plain, lambda c: st.lists(c, max_size=3) | st.dictionaries(text, c, max_size=3), max_leaves=6)
KEPT = {*store._FIELDS, *store._BOOKKEEPING, "dasmil_version"}
names = st.text(min_size=1, max_size=12).filter(lambda s: "\0" not in s and s.isprintable() and s not in KEPT)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    metadata=st.dictionaries(names, nested, max_size=4),
    n=st.integers(1, 6),
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    bag_id=st.text(min_size=1, max_size=10),
    label=st.none() | st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_any_bag_round_trips(metadata, n, shape, bag_id, label, seed):
    rng = np.random.default_rng(seed)
    bag = make_bag(
        features=rng.standard_normal((n, *shape)),
        coords=rng.standard_normal((n, 2)) * 1e6,
        bag_id=bag_id,
        label=label,
        metadata=metadata,
        instance_labels=rng.integers(0, 300, n).astype(np.int16),
        key_instances=rng.random(n) > 0.5,
        section=None,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        store.write_bag(path, bag)
        found = store.read_bag(path)
    assert_same(found, bag)
    assert found.metadata == metadata | {"dasmil_version": dasmil.__version__}


@settings(max_examples=60, deadline=None)
@given(keep=st.floats(0, 1), tail=st.binary(max_size=64))
def test_any_cut_file_is_one_clear_error(tmp_path_factory, keep, tail):
    path = tmp_path_factory.mktemp("cut") / "cut.h5"
    store.write_bag(path, make_bag())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * (len(whole) - 65))] + tail)
    with pytest.raises(DataError, match=r"cut\.h5"):
        store.read_bag(path)

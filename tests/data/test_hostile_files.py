"""Feature files that are damaged, hostile or careless: one clear message, nothing else; seeded, a small set of many."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import signal
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from dasmil.data import guard
from dasmil.data.cohort import bag_sizes, load_cohort
from dasmil.data.doctor import check_bags
from dasmil.data.formats import probe_features, read_features
from dasmil.data.formats.hdf5 import is_own
from dasmil.data.scale import Scale, Scales
from dasmil.data.store import read_bag, read_bag_info, read_coords, write_bag
from dasmil.errors import DasmilError, DataError, one_line
from dasmil.types import Bag
from dasmil.wsi.finished import count_tiles, read_marks

SCALE = Scale(mpp=0.5)
KINDS = ("dasmil", "clam", "trident", "stamp", "historic")
N = 40


def good(path: Path, kind: str) -> bytes:
    values = np.random.default_rng(0).normal(size=(N, 6)).astype("f4")
    places = np.stack(np.divmod(np.arange(N), 8), axis=1) * 256.0
    if kind == "dasmil":
        metadata = {"tile_um": 256.0, "mpp": 0.5, "slide_width_px": 4096, "slide_height_px": 4096, "made": {"a": 1}}
        section = torch.zeros(N, dtype=torch.int64)
        coords = torch.from_numpy(places)
        write_bag(path, Bag(torch.from_numpy(values), coords, "um", "b", 1, "p", section=section, metadata=metadata))
    else:
        with h5py.File(path, "w") as file:
            file["feats" if kind in ("stamp", "historic") else "features"] = values
            file["coords"] = places
            if kind == "trident":
                file["coords"].attrs.update(
                    {"patch_size_level0": 512, "level0_magnification": 20, "level0_width": 5000}
                )
            if kind == "stamp":
                file.attrs.update({"tile_size_um": 256.0, "unit": "um", "extractor": "uni"})
    return path.read_bytes()


def use(path: Path) -> list[str]:
    """Do with a file all that the commands do; returns the messages, anything but a clear one is raised."""
    steps: list[Callable[[], object]] = [
        lambda: read_bag(path),
        lambda: read_bag_info(path),
        lambda: read_coords(path),
        lambda: probe_features(path),
        lambda: read_features(path, SCALE),
        lambda: read_features(path, SCALE, features=False),
        lambda: list(check_bags(path, None, Scales(SCALE)))[-1].as_json(),
        lambda: read_marks(path),
        lambda: count_tiles(path),
        lambda: bag_sizes(load_cohort(path, scales=Scales(SCALE))),
        lambda: load_cohort(path, scales=Scales(SCALE))[0],
    ]
    messages: list[str] = []
    for step in steps:
        try:
            step()
        except DasmilError as error:
            messages.append(str(error))
    assert all(len(message) <= 2000 and "\n" not in message for message in messages)
    return messages


def damaged(data: bytes, r: random.Random) -> bytes:
    """Bytes cut, flipped, zeroed, moved or inserted."""
    out, at, size = bytearray(data), r.randrange(len(data)), r.choice((8, 64, 512))
    other = r.randrange(len(data))
    match r.choice(("cut", "flip", "flip", "flip", "zero", "copy", "insert")):
        case "cut":
            del out[at:]
        case "flip":
            for _ in range(r.choice((1, 2, 4, 16, 64))):
                at = r.randrange(len(out))
                out[at] = r.choice((out[at] ^ (1 << r.randrange(8)), 0, 255))
        case "zero":
            out[at : at + size] = bytes(size)
        case "copy":
            out[at : at + size] = out[other : other + size]
        case "insert":
            out[at:at] = r.randbytes(size)
    return bytes(out)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_one_clear_error_each(kind: str, tmp_path: Path) -> None:
    data = good(tmp_path / "good.h5", kind)
    assert read_features(tmp_path / "good.h5", SCALE).features.shape == (N, 6)
    for i in range(60):
        path = tmp_path / f"{i}.h5"
        path.write_bytes(damaged(data, random.Random(f"{kind} {i}")))
        use(path)
        path.unlink()


ODD = (
    0,
    -1,
    2**63 - 1,
    3.5,
    float("nan"),
    float("inf"),
    "",
    "a\nb",
    "x" * 60000,
    b"\xff",
    [],
    [1, 2],
    np.zeros((0, 3)),
)
ODD += (h5py.Empty("f4"), np.void(b"abc"), 1 + 2j, "[" * 30000, "9" * 5000)
NAMES = ("format", "format_version", "json_attributes", "unit", "bag_id", "label", "patient_id", "tile_um", "mpp")
NAMES += ("slide_width_px", "slide_height_px", "tile_size_um", "tile_size", "dasmil_mpp", "patch_size_level0")
NAMES += ("patch_size", "patch_level", "downsample", "level0_magnification", "level0_width")
SHAPES = ((N, 6), (N, 2), (N,), (0, 6), (N, 0), (), (1, N, 2), (N - 1, 2), (N, 2, 2), (1, 1))
TYPES = ("f2", "f8", ">f4", "i1", "u8", "?", "c8", "S5", np.longdouble, np.dtype([("a", "f4")]))


@pytest.mark.parametrize("kind", KINDS)
def test_odd_attributes_and_datasets_are_clear_errors(kind: str, tmp_path: Path) -> None:
    data = good(tmp_path / "good.h5", kind)
    for i in range(60):
        r, path = random.Random(f"odd {kind} {i}"), tmp_path / f"{i}.h5"
        path.write_bytes(data)
        with h5py.File(path, "r+") as file:
            for _ in range(r.choice((1, 2, 3))):
                if r.random() < 0.6:
                    place = file if r.random() < 0.7 else file[r.choice(list(file))]
                    place.attrs[r.choice(NAMES)] = r.choice(ODD)
                else:
                    name = r.choice(("features", "coords", "section", "key_instances", "feats", "augmented"))
                    if name in file:
                        del file[name]
                    shape, dtype = r.choice(SHAPES), r.choice(TYPES)
                    file.create_dataset(name, data=np.zeros(shape, dtype))
        use(path)
        path.unlink()


def test_flags_of_augmented_rows_must_be_one_each(tmp_path: Path) -> None:
    good(tmp_path / "a.h5", "clam")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["augmented"] = np.ones((N, 5), bool)
    with pytest.raises(DataError, match=r"'augmented' has shape \(40, 5\), expected \[40\]"):
        read_features(tmp_path / "a.h5", SCALE)


def elsewhere(file: h5py.File, name: str, how: str, beside: Path) -> None:
    if how == "fifo":
        os.mkfifo(beside)
    if how == "raw":
        file.create_dataset(name, (N, 6), "u1", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])
    elif how in ("virtual", "virtual itself"):
        layout = h5py.VirtualLayout(shape=(N, 6), dtype="f4")
        source = "." if how == "virtual itself" else str(beside)
        layout[:] = h5py.VirtualSource(source, "features", shape=(N, 6))
        file.create_virtual_dataset(name, layout)
    else:
        links = {"soft": h5py.SoftLink("/coords"), "loop": h5py.SoftLink(f"/{name}")}
        file[name] = links.get(how, h5py.ExternalLink(str(beside), "/features"))


@pytest.mark.parametrize("kind", ["dasmil", "clam"])
@pytest.mark.parametrize("how", ["soft", "loop", "external", "fifo", "raw", "virtual", "virtual itself"])
def test_data_that_lie_elsewhere_are_refused(kind: str, how: str, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    good(path, kind)
    if how in ("external", "virtual"):
        good(tmp_path / "b.h5", "clam")
    with h5py.File(path, "r+") as file:
        del file["features"]
        elsewhere(file, "features", how, tmp_path / "b.h5")
    assert all("not followed" in message for message in use(path))
    with pytest.raises(DataError, match="not followed: copy"):
        read_features(path, SCALE)


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("n", [2_000_000, 10**9, 2**62])
def test_rows_that_were_never_written_are_not_read(compression: str | None, n: int, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    good(path, "clam")
    with h5py.File(path, "r+") as file:
        for name, width in (("features", 512), ("coords", 2)):
            del file[name]
            file.create_dataset(name, (n, width), "f4", chunks=(65536, width), compression=compression)
    for features in (True, False):
        with pytest.raises(DataError, match=r"is declared as .* but was never written in full"):
            read_features(path, SCALE, features=features)


def test_a_little_that_unpacks_to_very_much_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("features", (600_000, 128), "f4", chunks=(300_000, 128), compression=1)
        for start in range(0, 600_000, 300_000):
            data[start : start + 300_000] = 0
    with pytest.raises(DataError, match=r"307,200,000 bytes\), but only .* bytes are stored"):
        read_features(tmp_path / "a.h5", SCALE)


def test_a_file_that_ends_the_library_costs_one_message(tmp_path: Path) -> None:
    """The child that looks at files may die, as if the HDF5 library had crashed: the next file gets another child."""
    good(tmp_path / "good.h5", "dasmil")
    os.mkfifo(tmp_path / "hangs.h5")
    inspector = guard._Inspector()
    for number, words in (
        (signal.SIGPROF, "came to no end"),
        (signal.SIGSEGV, "the library that reads it failed"),
    ):
        threading.Timer(0.3, os.kill, (inspector.process.pid, number)).start()
        answer = inspector.ask(tmp_path / "hangs.h5")
        assert answer is not None
        assert words in answer
        inspector.close()
        inspector = guard._Inspector()
    assert inspector.ask(tmp_path / "good.h5") is None
    inspector.close()


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("executed",))


def saved(value: object, **how: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, **how)  # type: ignore[arg-type]
    return stream.getvalue()


def lying(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return stream.getvalue() + bytes(100)


def zipped(member: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("arr_0.npy", member)
    return stream.getvalue()


T = torch.arange(12.0).reshape(6, 2)


def test_tensors_of_slideflow_are_clear_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, index = tmp_path / "s.pt", tmp_path / "s.index.npz"
    np.savez(index, T.numpy())
    values = [[T], T[0], T[:0], T.to(torch.complex64), T.to_sparse(), torch.zeros(1, 1).expand(10**9, 512), "x", Evil()]
    values += [torch.quantize_per_tensor(T, 0.1, 0, torch.qint8), T.to("meta"), torch.nested.nested_tensor([T, T])]
    files = [saved(value) for value in values] + [b"", b"text\n", pickle.dumps(Evil()), zipped(b"x")]
    for old in (False, True):
        data = saved(T, _use_new_zipfile_serialization=not old)
        files += [damaged(data, random.Random(f"{old} {i}")) for i in range(40)]
    for data in files:
        path.write_bytes(data)
        use(path)
    path.write_bytes(saved(T))
    np.testing.assert_array_equal(read_features(path, SCALE).features, T.numpy())
    for data in (lying((10**12, 2)), lying((-5, 2)), lying((6, 2)), b"\x93NUMPY\x02\x00" + b"(" * 4000, b""):
        for member in (zipped(data), data):
            index.write_bytes(member)
            assert use(path)
    assert "executed" not in capsys.readouterr().out


def test_settings_of_other_tools_may_be_broken(tmp_path: Path) -> None:
    good(tmp_path / "a.h5", "historic")
    for text in ("[" * 100_000, "[]", "{", '{"microns": "x", "patch_size": 1}', json.dumps({"microns": 1e400}), "\0"):
        (tmp_path / "info.json").write_text(text)
        assert use(tmp_path / "a.h5")


def test_messages_are_one_line_of_bounded_length() -> None:
    assert one_line("a\nb\x1b[31mc\udcff") == "a b\\x1b[31mc\\udcff"
    assert len(one_line("x" * 10**6)) < 210
    assert len(one_line("x y " * 10**6)) <= 2000
    assert one_line("/a/" + "b" * 250 + "/c.h5: no such file").endswith("/c.h5: no such file")


def test_a_format_that_is_an_array_is_not_ours(tmp_path: Path) -> None:
    good(tmp_path / "a.h5", "dasmil")
    for value, own in (("dasmil-bag", True), (np.array([], "f4"), False), (np.arange(2), False)):
        with h5py.File(tmp_path / "a.h5", "r+") as file:
            file.attrs["format"] = value
            assert is_own(file) is own


def test_damaged_files_of_slide2vec_are_one_clear_error_each(tmp_path: Path) -> None:
    path, corners = tmp_path / "s.pt", tmp_path / "s.coordinates.npz"
    path.write_bytes(saved(T))
    np.savez_compressed(corners, x=np.arange(6) * 256, y=np.zeros(6, np.int64), tile_index=np.arange(6))
    meta = tmp_path / "s.coordinates.meta.json"
    meta.write_text(json.dumps({"slide": {"base_spacing_um": 0.5}, "tiling": {"tile_size_lv0": 256}}))
    assert read_features(path).coords[1].tolist() == [192, 64]
    for file in (path, corners, meta):
        data = file.read_bytes()
        for i in range(25):
            file.write_bytes(damaged(data, random.Random(f"slide2vec {file.suffix} {i}")))
            use(path)
        file.write_bytes(data)
    for data in (lying((10**12,)), lying((-5,)), b""):
        corners.write_bytes(zipped(data).replace(b"arr_0", b"xxxxx"))
        assert use(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("tile_um", [1.0, 2.0]), ("tile_um", "wide"), ("mpp", float("nan")), ("threshold_px", "abc"), ("slides", 3),
     ("collage_px", -1), ("instance_label_names", "abc"), ("section_names", 1.5)],
)  # fmt: skip
def test_attributes_that_others_count_on_have_their_kind(name: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    good(path, "dasmil")
    with h5py.File(path, "r+") as file:
        file.attrs[name] = value
    for read in (read_bag, read_bag_info):
        with pytest.raises(DataError, match=rf"{name} is .*, expected a (positive number|list of names)"):
            read(path)

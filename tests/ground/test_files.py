"""One writer for all files: whole or absent, with the user's rights, and one message when the disk is full."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import dasmil
from dasmil.attribution.export import written
from dasmil.data.store import write_bag
from dasmil.errors import DataError, StorageError
from dasmil.files import (
    json_hash,
    read_csv,
    read_json,
    replacing,
    write_csv,
    write_json,
    write_tensors,
    write_text,
)
from dasmil.report.style import new_figure, save_png
from dasmil.types import Bag

SOURCES = Path(dasmil.__file__).parent


def write_half(target: Path) -> None:
    with replacing(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError("stop")


def test_a_file_is_whole_or_absent(tmp_path):
    target = tmp_path / "file.json"
    write_json(target, {"a": float("nan"), "b": [1.5, float("inf")]})
    assert json.loads(target.read_text()) == {"a": None, "b": [1.5, None]}
    with pytest.raises(RuntimeError, match="stop"):
        write_half(target)
    assert json.loads(target.read_text())["a"] is None
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    with pytest.raises(StorageError, match="could not be written"):
        write_json(blocked / "x.json", {})


def _explanation(path: Path) -> None:
    with written(path) as file:
        file.write("text")


def _tensors(path: Path) -> None:
    with replacing(path) as temporary:
        save_file({"a": torch.zeros(2)}, temporary)


WRITERS = {
    "text": lambda path: write_text(path, "text"),
    "csv": lambda path: write_csv(path, [{"a": 1}]),
    "tensors": _tensors,
    "model": lambda path: dasmil.create_model("max-pool", in_features=2).save(path),
    "bag": lambda path: write_bag(path, Bag(torch.zeros(1, 2), torch.zeros(1, 2), "um", "a")),
    "explanation": _explanation,
    "picture": lambda path: save_png(new_figure(80, 60)[0], path),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(("umask", "rights"), [(0o022, 0o644), (0o007, 0o660)])
def test_every_file_has_the_rights_of_the_users_umask(tmp_path, name, umask, rights):
    before = os.umask(umask)
    try:
        WRITERS[name](tmp_path / "file")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == rights


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_message_and_keeps_the_old_file(tmp_path, name, monkeypatch):
    (tmp_path / "file").write_text("before")

    def full_disk(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", full_disk)  # where network file systems say it
    with pytest.raises(StorageError, match=r"the disk is full: .*file could not be written.*free some space"):
        WRITERS[name](tmp_path / "file")
    assert (tmp_path / "file").read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_an_hdf5_file_that_fails_halfway_leaves_nothing(tmp_path):
    from dasmil.data.store import replacing_h5

    def fail() -> None:
        with replacing_h5(tmp_path / "a.h5") as file:
            file["x"] = [1]
            raise DataError("stop")

    with pytest.raises(DataError, match="stop"):
        fail()
    assert list(tmp_path.iterdir()) == []
    with replacing_h5(tmp_path / "a.h5") as file:
        file["x"] = [1]
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["x"][0] == 1


def test_reading_says_what_was_expected(tmp_path):
    with pytest.raises(DataError, match=r"a\.json is missing: expected a run"):
        read_json(tmp_path / "a.json", "a run")
    with pytest.raises(DataError, match=r"a\.csv is missing: expected a table"):
        read_csv(tmp_path / "a.csv", "a table")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(DataError, match=r"a\.json is not readable as JSON"):
        read_json(tmp_path / "a.json")
    write_csv(tmp_path / "a.csv", [{"x": 1, "y": "a,b"}, {"x": 2, "y": ""}])
    assert read_csv(tmp_path / "a.csv") == [{"x": "1", "y": "a,b"}, {"x": "2", "y": ""}]


def test_a_hash_does_not_depend_on_the_order_of_keys():
    assert json_hash({"a": 1, "b": [2]}) == json_hash({"b": [2], "a": 1}) != json_hash({"a": 1, "b": [3]})
    assert json_hash({"a": 1}) == "f9d86028c6e0d64e225186f96acb69338b2c59764df79162107f5c4bb34d1310"


def test_no_other_room_has_a_writer_of_its_own():
    """Renaming into place happens in files.py alone."""
    own = re.compile(r"os\.(replace|rename|fsync|umask)\(|mkstemp|\.tmp\"")
    found = [
        f"{file.relative_to(SOURCES)}: {line.strip()}"
        for file in SOURCES.rglob("*.py")
        if file.name != "files.py"
        for line in file.read_text(encoding="utf-8").splitlines()
        if own.search(line)
    ]
    leftovers = [line for line in found if line.startswith("wsi/finished.py") and ".glob(" in line]
    assert found == leftovers


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from dasmil.files import write_tensors, write_text
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
write_tensors(Path(sys.argv[1]), {"a": torch.zeros(4)}, {"b": "1", "a": "2"})
"""


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path):
    """The same folder, another file; the temporary files of living processes and of other machines stay."""
    target = tmp_path / "model.safetensors"
    subprocess.run([sys.executable, "-c", KILLED, target], check=False)
    (left,) = tmp_path.iterdir()
    assert re.fullmatch(r"\.model\.safetensors\.[0-9a-f]{16}\.tmp", left.name)
    assert not target.exists()
    machine = left.name.split(".")[-2][:4]
    other = tmp_path / f".x.{'0000' if machine != '0000' else '1111'}{left.name.split('.')[-2][4:]}.tmp"
    living = tmp_path / f".y.{machine}{os.getpid():08x}abcd.tmp"
    strange = tmp_path / ".z.tmp"
    for file in (other, living, strange):
        file.write_text("somebody else's")
    write_text(tmp_path / "note.txt", "text")
    assert {p.name for p in tmp_path.iterdir()} == {"note.txt", other.name, living.name, strange.name}


def test_tensors_make_the_same_file_each_time(tmp_path):
    tensors = {name: torch.arange(3.0) for name in "abc"}
    for k in range(3):
        write_tensors(tmp_path / f"{k}.safetensors", tensors, {str(word): "x" for word in range(12)})
    assert len({(tmp_path / f"{k}.safetensors").read_bytes() for k in range(3)}) == 1
    with safe_open(tmp_path / "0.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("b"), torch.arange(3.0))
        assert len(file.metadata()) == 12


def test_a_temporary_file_that_cannot_be_removed_does_not_hide_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only disk says no to removing, even where there is no such file."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StorageError, match=r"a\.txt could not be written: .*Read-only file system"):
        write_text(tmp_path / "a.txt", "x")


def test_what_may_not_be_read_is_neither_missing_nor_damaged(tmp_path, monkeypatch):
    """The reader of safetensors says "No such file or directory", a folder seems empty; root may read everything."""
    from dasmil.data.formats import find_feature_files
    from dasmil.models.storage import read_model
    from dasmil.wsi.encoders.weights import read_weights

    model, folder = tmp_path / "model.safetensors", tmp_path / "bags"
    dasmil.create_model("mean-pool", in_features=3).save(model)
    folder.mkdir()
    (folder / "a.h5").write_bytes(b"x")
    assert find_feature_files(folder) == [folder / "a.h5"]
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) not in (model, folder))
    for read, place in ((read_model, model), (read_weights, model), (find_feature_files, folder)):
        with pytest.raises(DataError, match=f"{place} cannot be read \\(permission denied\\): change who may read it"):
            read(place)

"""Tables that unpack without end are refused by their footer; a lack of file handles is no damaged file."""

from __future__ import annotations

import errno
from pathlib import Path

import h5py
import numpy as np
import pytest

from dasmil.data.frames import read_frame
from dasmil.data.store import open_h5
from dasmil.errors import DataError
from dasmil.files import for_spreadsheets, replacing, write_text


def test_a_small_file_of_many_rows_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    n = 9_000_000
    nothing = arrow.array(np.zeros(n, np.int8))
    parquet.write_table(arrow.table({"patient": nothing, "x": nothing}), tmp_path / "bomb.parquet", compression="zstd")
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    monkeypatch.setattr("pandas.read_parquet", lambda _path: pytest.fail("it was unpacked"))
    with pytest.raises(DataError, match=r"unpacks to 9,000,000 rows and 144 MB, more than 67 MB"):
        read_frame(tmp_path / "bomb.parquet", "patient")


def test_too_few_open_files_do_not_make_a_file_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = np.zeros((2, 2))

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("dasmil.data.store.h5py.File", full)
    with pytest.raises(OSError, match="Too many open files") as caught, open_h5(tmp_path / "a.h5"):
        pass
    assert not isinstance(caught.value, DataError)


@pytest.mark.parametrize("cell", ["=1+1", "+cmd", "-x", "@SUM(A1)", "\t=1", "-", "=HYPERLINK(1)"])
def test_formulas_are_exported_as_text(cell: str) -> None:
    assert for_spreadsheets(cell) == f"'{cell}"


@pytest.mark.parametrize("cell", ["-1.5", "+3", "-1e-5", "-inf", "a=b", "", None, -2.0, "p-1"])
def test_numbers_and_ordinary_text_stay(cell: object) -> None:
    assert for_spreadsheets(cell) == cell


def test_a_folder_is_synchronised_after_a_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synchronised: list[str] = []
    monkeypatch.setattr("dasmil.files._to_disk", lambda path, *_mode: synchronised.append(path.name))
    write_text(tmp_path / "a.txt", "x")
    assert synchronised[1:] == [tmp_path.name]

    def refuses(path: Path, *mode: int) -> None:
        if mode:
            raise OSError("no fsync of folders here")

    monkeypatch.setattr("dasmil.files._to_disk", refuses)
    with replacing(tmp_path / "b.txt") as temporary:
        temporary.write_text("y")
    assert (tmp_path / "b.txt").read_text() == "y"

"""Tables of cells as data frames, read so that no file of somebody else ends the process."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dasmil.data.guard import check_hdf5
from dasmil.data.memory import need_memory
from dasmil.data.text_table import find_encoding, plain_number
from dasmil.errors import WORD, DataError, MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd

MOST_COLUMNS = 30_000
# A compressed table may unpack to this much, or to a hundred times its own size: more is no table.
BELIEVED_BYTES, BELIEVED_RATIO = 64 << 20, 100


def read_frame(path: Path, text_column: str) -> pd.DataFrame:
    """A CSV, TSV or Parquet file; the values of text_column stay text ("007")."""
    try:
        import pandas
    except ImportError:
        raise MissingDependencyError("pandas", "tables", "Reading tables of cells") from None
    try:
        if path.suffix.lower() == ".parquet":
            return _read_parquet(path, pandas)
        with unpacked(path) as stream:
            return pandas.read_csv(
                stream,
                sep=_separator(path),
                dtype={text_column: str},
                encoding=_encoding(path),
                float_precision="round_trip",  # type: ignore[arg-type]  # the quick parser crashes on long exponents
            )
    except DataError:
        raise
    except Exception as error:  # pandas, Arrow, gzip and the decoders have errors of their own
        raise unreadable(path, "a table", error) from None


def read_anndata(path: Path) -> Any:
    """An AnnData file; its sparse matrix is checked, because scipy writes where a wrong index says."""
    try:
        import anndata
    except ImportError:
        raise MissingDependencyError("anndata", "tables", "Reading .h5ad files") from None
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; make it again")
    check_hdf5(path)
    try:
        data: Any = anndata.read_h5ad(path)
        if hasattr(data.X, "check_format"):
            data.X.check_format(full_check=True)
    except Exception as error:  # h5py, anndata's registry and scipy have errors of their own
        raise unreadable(path, "AnnData", error) from None
    return data


def numbers(column: pd.Series) -> np.ndarray:
    """A column as float64, NaN for what is no number; pandas' own conversion of text crashes on long exponents."""
    if column.dtype.kind in "fiub":
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.array([_number(value) for value in column], dtype=np.float64)


def _number(value: object) -> float:
    if isinstance(value, str):
        number = plain_number(value)
        return float("nan") if number is None else number
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _read_parquet(path: Path, pandas: Any) -> pd.DataFrame:
    import pyarrow.parquet

    about = pyarrow.parquet.read_metadata(path)
    _check_width(path, about.num_columns)
    check_unpacked(path, about)
    need_memory(path, f"a table of {about.num_rows:,} rows", about.num_rows * about.num_columns * 8)
    frame: pd.DataFrame = pandas.read_parquet(path)
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise DataError(f"{path}: the column {str(twice[0])[:WORD]!r} occurs twice; rename one")
    for name, kind in frame.dtypes.items():
        if kind.kind == "O" and any(isinstance(value, bytes) for value in frame[name]):  # text of older programs
            frame[name] = [_text(value) for value in frame[name]]
    return frame


def check_unpacked(path: Path, about: Any) -> None:
    """Refuse a Parquet file that unpacks to much more than a table of its size, by what its footer says."""
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    size = max(8 * about.num_rows * about.num_columns, sum(group.total_byte_size for group in groups))
    most = max(BELIEVED_BYTES, BELIEVED_RATIO * path.stat().st_size)
    if size > most:
        raise DataError(
            f"{path}: unpacks to {about.num_rows:,} rows and {size / 1e6:,.0f} MB, more than {most / 1e6:,.0f} MB, "
            "which is no table of cells; save it without compression"
        )


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _check_width(path: Path, columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise DataError(f"{path}: {columns:,} columns, expected at most {MOST_COLUMNS:,}; keep wide tables as AnnData")


def _encoding(path: Path) -> str:
    """The encoding of a table by its marks; pandas says where UTF-8 text is not UTF-8."""
    with unpacked(path) as stream:
        start = stream.read(4096)
        rest = stream.readline(50_000_000)
    found = find_encoding(start) or "utf-8"
    first = (start + rest).partition(b"\n")[0]
    _check_width(path, first.count(_separator(path).encode()) + 1)
    return found if found.startswith(("utf-16", "utf-32")) else "utf-8-sig"


def _separator(path: Path) -> str:
    """Tabs by the file's name, or, as other tools name their tables, where the first line has more of them."""
    if ".tsv" in path.suffixes:
        return "\t"
    line = first_line(path)
    return max(",\t;", key=line.count)


def first_line(path: Path) -> str:
    """The first line of a text file, as far as it can be read as text; empty where it cannot."""
    with unpacked(path) as stream:
        start = stream.readline(1_000_000)
    return start.decode(find_encoding(start) or "utf-8", "replace").strip("\r\n\ufeff")


class _Unpacked(io.RawIOBase):
    """What a compressed file holds, up to a size that is believed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stream = gzip.open(path)  # noqa: SIM115 (closed by close)
        self.most = max(BELIEVED_BYTES, BELIEVED_RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.stream.readinto(buffer)
        if self.stream.tell() > self.most:
            raise DataError(f"{self.path}: unpacks to more than {self.most // 10**6} MB, expected a table; unpack it")
        return count

    def close(self) -> None:
        self.stream.close()
        super().close()


def unpacked(path: Path) -> Any:
    """The bytes of a file as a stream, out of gzip where its name says so."""
    return io.BufferedReader(_Unpacked(path)) if path.name.lower().endswith(".gz") else path.open("rb")


def unreadable(path: Path, kind: str, error: Exception) -> DataError:
    """The error for a file that a library of others could not read."""
    reason = " ".join((str(error) or type(error).__name__).split())[:WORD]
    return DataError(f"{path} cannot be read as {kind}: {reason}")

"""Small tables (labels, scales, reference tables) as people keep them: any usual encoding, CSV, TSV, Excel, Parquet."""

from __future__ import annotations

import codecs
import csv
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dasmil.data.spreadsheet import read_spreadsheet
from dasmil.errors import DataError, InputError, MissingDependencyError, shown

MOST_BYTES, MOST_COLUMNS, MOST_ROWS = 200_000_000, 10_000, 1_000_000
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))
_NUMBER = re.compile(r"[+-]?(inf(inity)?|nan|([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?)", re.IGNORECASE)
# Letters with accents stand alone or in pairs inside words of Latin letters; words of other alphabets are all high.
_LATIN1 = re.compile(rb"[\xa0-\xff]{1,2}(?![\x80-\xff])|[\x00-\x7f]+")


def table_rows(path: Path, what: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table with their line numbers, values stripped; what: the table in messages ("label table").

    Names are brought to composed Unicode (NFC): macOS writes an accent as a character of its own.
    """
    path = Path(path)
    if "\0" in str(path) or not path.is_file():
        raise InputError(f"no {what} {path}")
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"{path} is larger than {MOST_BYTES // 10**6} MB, expected a {what}: a line for each slide")
    for number, values in _numbered(path):
        if number > MOST_ROWS + 1:
            raise DataError(f"{path} has more than {MOST_ROWS:,} rows, expected a {what}: a line for each slide")
        if any(value.strip() for value in values):
            if len(values) > MOST_COLUMNS:
                raise DataError(f"{path}, line {number}: {len(values):,} columns, expected at most {MOST_COLUMNS:,}")
            yield number, [composed(value.strip()) for value in values]


def composed(text: str) -> str:
    """Text in composed Unicode (NFC), without characters that nobody sees (zero-width spaces, soft hyphens)."""
    return text if text.isascii() else unicodedata.normalize("NFC", text.translate(_INVISIBLE)).strip()


def plain_number(text: str) -> float | None:
    """The number that a text is, or None; "1_000" and digits of other scripts, which Python reads, are none."""
    return float(text) if _NUMBER.fullmatch(text.strip()) else None


def read_rows(path: Path, what: str = "label table") -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The header of a table, and its rows by column with their line numbers."""
    lines = table_rows(path, what)
    _, header = next(lines, (0, None))
    if header is None:
        raise DataError(f"{path} is empty: expected a header and rows")
    twice = sorted(name for name, count in Counter(header).items() if count > 1)
    if twice:
        raise DataError(f"{path}: the column {shown(twice[0])} occurs twice; rename one")
    rows: list[tuple[int, dict[str, str]]] = []
    for number, values in lines:
        if len(values) != len(header):
            raise DataError(f"{path}, line {number}: {len(values)} values for {len(header)} columns")
        rows.append((number, dict(zip(header, values))))
    return header, rows


def _numbered(path: Path) -> Iterator[tuple[int, list[str]]]:
    if path.suffix.lower() == ".xls":
        raise InputError(f"{path} is a spreadsheet of the old kind (.xls): save it as .xlsx or CSV")
    if path.suffix.lower() in (".xlsx", ".xlsm"):
        yield from enumerate(read_spreadsheet(path, MOST_BYTES, MOST_COLUMNS), start=1)
        return
    if path.suffix.lower() == ".parquet":
        yield from enumerate(_parquet_rows(path), start=1)
        return
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check the disk and who may read it") from error
    text = decoded(path, data)
    # Only the csv module knows where a row ends: cells may hold line breaks, and separators such as U+2028.
    delimiter = max("\t;,", key=text.lstrip("\r\n").partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        yield from enumerate(reader, start=1)
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: {error}; is a quotation mark left open, or is it no table at all?"
        ) from None


def _parquet_rows(path: Path) -> Iterator[list[str]]:
    """Header and rows of a Parquet file as text: whole numbers without a point, nothing for null."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError("pyarrow", "tables", "Reading a Parquet table") from None
    try:
        about = pyarrow.parquet.read_metadata(path)
        if about.num_rows > MOST_ROWS or about.num_columns > MOST_COLUMNS:
            raise DataError(
                f"{path}: {about.num_rows:,} rows and {about.num_columns:,} columns, expected a line for each slide"
            )
        if (size := sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))) > MOST_BYTES:
            raise DataError(f"{path}: unpacks to {size / 1e6:,.0f} MB, expected a line for each slide")
        table = pyarrow.parquet.read_table(path)
        columns = [[_as_text(value) for value in column.to_pylist()] for column in table.columns]
    except DataError:
        raise
    except Exception as error:  # Arrow has many errors of its own
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise DataError(f"{path} cannot be read as a Parquet table ({reason}); save it again, or as CSV") from None
    yield [str(name) for name in table.column_names]
    yield from (list(row) for row in zip(*columns))


def _as_text(value: object) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))  # pandas turns whole numbers beside an empty cell into fractions
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def decoded(path: Path, data: bytes) -> str:
    """The text of a table: UTF-8, UTF-16 or UTF-32 by their marks, or Latin-1 where it cannot be anything else."""
    encoding = find_encoding(data)
    if encoding is None:
        raise DataError(
            f"{path} is not UTF-8 text, and its encoding cannot be told from its bytes: save the table as CSV (UTF-8)"
        )
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is {encoding.upper()} text that is cut or damaged ({error.reason})") from None
    if "\0" in text:
        raise DataError(f"{path} holds NUL characters, expected text: save the table as CSV (UTF-8)")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def find_encoding(data: bytes) -> str | None:
    """The encoding of a table's bytes; None where several would do."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return encoding
    start = data[:4096]
    if b"\0" in start:
        for encoding, zeros in (("utf-16-le", start[1::2]), ("utf-16-be", start[::2])):
            if zeros.count(0) > 0.9 * len(zeros) and start.count(0) < 0.6 * len(start):
                return encoding
    try:
        data.decode("utf-8")
        return "utf-8"
    except UnicodeDecodeError:
        return "latin-1" if sum(len(part) for part in _LATIN1.findall(data)) == len(data) else None

"""The first sheet of an Excel file (.xlsx) as rows of text: a zip archive of XML, read without a further package."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from pathlib import Path
from xml.etree import ElementTree

from dasmil.errors import DataError

_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_REFERENCE = re.compile(r"([A-Z]{1,3})[0-9]+")
_DATE_FORMATS = frozenset(str(k) for k in (*range(14, 23), *range(27, 37), *range(45, 48), *range(50, 59)))
_LITERAL = re.compile(r'"[^"]*"|\\.|\[[^\]]*\]|general', re.IGNORECASE)  # parts of a format that are no placeholder


@dataclass(frozen=True)
class _Book:
    """What all cells share."""

    texts: list[str]
    date_styles: frozenset[str]
    first_day: datetime


def read_spreadsheet(path: Path, most_bytes: int, most_columns: int) -> Iterator[list[str]]:
    """Rows of the first sheet, as long as the longest.

    Numbers as Excel keeps them (1 stays 1, not 1.0), dates as 2026-03-01.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(item.file_size for item in archive.infolist()) > most_bytes:
                raise DataError(f"{path} unpacks to more than {most_bytes // 10**6} MB, expected a table of slides")
            book = _Book(_shared_texts(archive), _date_styles(archive), _first_day(archive))
            sheet = _parse(archive, _first_sheet(archive))
            rows = [_values(path, row, book, most_columns) for row in sheet.iter(f"{_MAIN}row")]
    except DataError:
        raise
    except Exception as error:  # zip archives, their compression and XML have errors of their own
        reason = f"{type(error).__name__}: {error}"[:120]
        raise DataError(f"{path} cannot be read as an Excel table ({reason}); save it as CSV (UTF-8)") from None
    width = max(map(len, rows), default=0)
    yield from (row + [""] * (width - len(row)) for row in rows)


def _parse(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    data = archive.read(name)
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:  # Excel writes none; entities can be made to grow without end
        raise ValueError(f"{name} declares entities")
    return ElementTree.fromstring(data)


def _shared_texts(archive: zipfile.ZipFile) -> list[str]:
    name = "xl/sharedStrings.xml"
    if name not in archive.namelist():
        return []
    return [_text(item) for item in _parse(archive, name).iter(f"{_MAIN}si")]


def _text(item: ElementTree.Element) -> str:
    """The text of a cell without the readings that Japanese tables add to it."""
    hidden = {id(part) for reading in item.iter(f"{_MAIN}rPh") for part in reading.iter()}
    return "".join(part.text or "" for part in item.iter(f"{_MAIN}t") if id(part) not in hidden)


def _first_sheet(archive: zipfile.ZipFile) -> str:
    first = next(_parse(archive, "xl/workbook.xml").iter(f"{_MAIN}sheet")).get(_RELATION)
    for relation in _parse(archive, "xl/_rels/workbook.xml.rels"):
        if relation.get("Id") == first:
            target = relation.get("Target", "")
            return target.lstrip("/") if target.startswith("/") else f"xl/{target}"
    raise ValueError("its first sheet is missing")


def _date_styles(archive: zipfile.ZipFile) -> frozenset[str]:
    """The numbers of the cell styles that show a number as a date or a time of day."""
    name = "xl/styles.xml"
    if name not in archive.namelist():
        return frozenset()
    styles = _parse(archive, name)
    formats = {item.get("numFmtId"): item.get("formatCode", "") for item in styles.iter(f"{_MAIN}numFmt")}
    dates = {key for key, code in formats.items() if re.search("[dmyhs]", _LITERAL.sub("", code), re.IGNORECASE)}
    cells = next(iter(styles.iter(f"{_MAIN}cellXfs")), ())
    return frozenset(
        str(k) for k, cell in enumerate(cells) if (shown := cell.get("numFmtId")) in dates or shown in _DATE_FORMATS
    )


def _first_day(archive: zipfile.ZipFile) -> datetime:
    """Day 0 of the workbook's dates: the 1900 system counts a 29 February that never was, the 1904 one does not."""
    about = next(iter(_parse(archive, "xl/workbook.xml").iter(f"{_MAIN}workbookPr")), None)
    late = about is not None and about.get("date1904") in ("1", "true")
    return datetime(1904, 1, 1) if late else datetime(1899, 12, 30)


def _values(path: Path, row: ElementTree.Element, book: _Book, most_columns: int) -> list[str]:
    values: list[str] = []
    for cell in row.iter(f"{_MAIN}c"):
        found = _REFERENCE.fullmatch(cell.get("r", ""))
        column = _column(found[1]) if found else len(values)
        if column >= most_columns:
            raise DataError(f"{path}: more than {most_columns:,} columns, expected a table of slides")
        values += [""] * (column + 1 - len(values))
        values[column] = _cell(cell, book)
    return values


def _cell(cell: ElementTree.Element, book: _Book) -> str:
    kind, value = cell.get("t", "n"), cell.findtext(f"{_MAIN}v") or ""
    if kind == "inlineStr":
        return _text(cell)
    if kind == "s":
        return book.texts[int(value)]
    if kind == "b":
        return {"0": "FALSE", "1": "TRUE"}.get(value, value)
    if kind == "n" and value and cell.get("s") in book.date_styles:
        moment = book.first_day + timedelta(days=float(value))
        return str(moment.date()) if moment == datetime.combine(moment.date(), time()) else str(moment)
    return value


def _column(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number - 1

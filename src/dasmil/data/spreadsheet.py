"""The first sheet of an Excel file (.xlsx) as rows of text: a zip archive of XML, read without a further package."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from dasmil.errors import DataError

_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_REFERENCE = re.compile(r"([A-Z]{1,3})[0-9]+")


def read_spreadsheet(path: Path, most_bytes: int, most_columns: int) -> Iterator[list[str]]:
    """Rows of the first sheet, as long as the longest; numbers as Excel keeps them (1 stays 1, not 1.0)."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(item.file_size for item in archive.infolist()) > most_bytes:
                raise DataError(f"{path} unpacks to more than {most_bytes // 10**6} MB, expected a table of slides")
            texts = _shared_texts(archive)
            sheet = _parse(archive, _first_sheet(archive))
            rows = [_values(path, row, texts, most_columns) for row in sheet.iter(f"{_MAIN}row")]
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


def _values(path: Path, row: ElementTree.Element, texts: list[str], most_columns: int) -> list[str]:
    values: list[str] = []
    for cell in row.iter(f"{_MAIN}c"):
        found = _REFERENCE.fullmatch(cell.get("r", ""))
        column = _column(found[1]) if found else len(values)
        if column >= most_columns:
            raise DataError(f"{path}: more than {most_columns:,} columns, expected a table of slides")
        values += [""] * (column + 1 - len(values))
        values[column] = _cell(cell, texts)
    return values


def _cell(cell: ElementTree.Element, texts: list[str]) -> str:
    kind, value = cell.get("t", "n"), cell.findtext(f"{_MAIN}v") or ""
    if kind == "inlineStr":
        return _text(cell)
    if kind == "s":
        return texts[int(value)]
    if kind == "b":
        return {"0": "FALSE", "1": "TRUE"}.get(value, value)
    return value


def _column(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number - 1

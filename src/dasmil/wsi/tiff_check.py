"""A look at the directories of a TIFF file before a decoder takes them at their word: some abort the whole process."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dasmil.errors import DataError

MOST_DIRECTORIES = 2000
MOST_BLOCK_PIXELS = 2**25
"""A block is decoded as a whole; scanners write 240 to 2048 pixels on a side."""
_BYTES = {1: 1, 3: 2, 4: 4, 13: 4, 16: 8, 17: 8, 18: 8}
_FORMAT = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q", 17: "q", 18: "Q"}
_WIDTH, _HEIGHT, _TILE_WIDTH, _TILE_HEIGHT, _OFFSETS, _SIZES = 256, 257, 322, 323, 324, 325


class _Tag(NamedTuple):
    kind: int
    number: int
    at: int


class _Layout(NamedTuple):
    """Byte order, sizes of the fields of an entry, and where the first directory is."""

    order: str
    counter: str
    entry: str
    inline: int
    first: int


def check_tiff(path: Path) -> None:
    """Refuse directories that contradict themselves: absurd blocks, fewer blocks than the picture has, none with data.

    What cannot be walked is left to the readers, which say what is wrong.
    """
    with path.open("rb") as file:
        try:
            layout = _layout(file)
            at, seen = layout.first, set[int]()
            while at and at not in seen:
                seen.add(at)
                if len(seen) > MOST_DIRECTORIES:
                    raise DataError(f"{path}: more than {MOST_DIRECTORIES:,} pictures in one TIFF file: no slide")
                tags, at = _directory(file, layout, at)
                _check_picture(path, file, layout, tags)
        except (struct.error, OSError, KeyError, OverflowError, ValueError) as error:
            if isinstance(error, DataError):
                raise


def _layout(file: BinaryIO) -> _Layout:
    start = file.read(16)
    order = "<" if start[:2] == b"II" else ">"
    if struct.unpack_from(order + "H", start, 2)[0] == 43:
        return _Layout(order, "Q", "HHQ", 8, struct.unpack_from(order + "Q", start, 8)[0])
    return _Layout(order, "H", "HHI", 4, struct.unpack_from(order + "I", start, 4)[0])


def _directory(file: BinaryIO, layout: _Layout, at: int) -> tuple[dict[int, _Tag], int]:
    """The tags of a directory, and where the next one is."""
    file.seek(at)
    size = struct.calcsize(layout.order + layout.counter)
    (count,) = struct.unpack(layout.order + layout.counter, file.read(size))
    if count > 4096:
        raise ValueError("no directory")
    head = struct.calcsize(layout.order + layout.entry)
    width = head + layout.inline
    data = file.read(count * width + layout.inline)
    tags: dict[int, _Tag] = {}
    for i in range(count):
        tag, kind, number = struct.unpack_from(layout.order + layout.entry, data, i * width)
        place = at + size + i * width + head
        if number * _BYTES.get(kind, 1) > layout.inline:
            (place,) = struct.unpack_from(layout.order + ("Q" if layout.inline == 8 else "I"), data, i * width + head)
        tags[tag] = _Tag(kind, number, place)
    (following,) = struct.unpack_from(layout.order + ("Q" if layout.inline == 8 else "I"), data, count * width)
    return tags, following


def _check_picture(path: Path, file: BinaryIO, layout: _Layout, tags: dict[int, _Tag]) -> None:
    if not {_WIDTH, _HEIGHT, _TILE_WIDTH, _TILE_HEIGHT, _OFFSETS} <= tags.keys():
        return  # strips: the readers bound them
    width, height, across, down = (
        _numbers(file, layout, tags[tag])[0] for tag in (_WIDTH, _HEIGHT, _TILE_WIDTH, _TILE_HEIGHT)
    )
    if not across or not down or across * down > MOST_BLOCK_PIXELS:
        raise DataError(
            f"{path}: its blocks are declared as {across:,} x {down:,} pixels, too much to read tiles from: if it is "
            "not damaged, save it with smaller ones, for example: vips tiffsave IN OUT --tile --pyramid "
            "--compression jpeg"
        )
    expected = math.ceil(width / across) * math.ceil(height / down)
    if tags[_OFFSETS].number < expected:
        raise DataError(
            f"{path}: a picture of {width:,} x {height:,} pixels has {expected:,} blocks, but the file lists "
            f"{tags[_OFFSETS].number:,}: it is damaged or truncated, copy it again"
        )
    if _SIZES in tags and expected and not any(_numbers(file, layout, tags[_SIZES])):
        raise DataError(f"{path}: a picture of {width:,} x {height:,} pixels has no data in any block; copy it again")


def _numbers(file: BinaryIO, layout: _Layout, tag: _Tag) -> tuple[int, ...]:
    file.seek(tag.at)
    data = file.read(min(tag.number, 2**24) * _BYTES[tag.kind])
    found = len(data) // _BYTES[tag.kind]
    numbers = struct.unpack(f"{layout.order}{found}{_FORMAT[tag.kind]}", data[: found * _BYTES[tag.kind]])
    if not numbers:
        raise ValueError("an empty tag")
    return numbers

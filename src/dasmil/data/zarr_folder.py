"""The door for zarr folders: what they declare is read as plain JSON, and a child process decodes them first.

Zarr finds the code that decodes an array by a name in the array's description. Some of that code unpickles, so only
codecs that turn bytes into numbers or text are let through.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

from dasmil.data.frames import BELIEVED_BYTES, BELIEVED_RATIO, unreadable
from dasmil.data.guard import check_zarr
from dasmil.data.memory import need_memory
from dasmil.errors import DataError, MissingDependencyError, named, shown

CODECS = frozenset((
    "blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd", "crc32", "crc32c", "adler32", "fletcher32", "shuffle",
    "delta", "transpose", "bytes", "endian", "sharding_indexed", "vlen-utf8", "vlen-bytes",
))  # fmt: skip
"""Codecs of zarr 2 and 3 that compress, check or reorder bytes. Zarr 3 may write them with the prefix "numcodecs."."""
MOST_DESCRIPTION_BYTES = 64 << 20
_DESCRIPTIONS = (".zarray", ".zmetadata", "zarr.json")


def open_table(table: Path) -> Any:
    """The AnnData of a zarr folder."""
    try:
        import anndata
        import zarr  # noqa: F401
    except ImportError:
        raise MissingDependencyError("anndata and zarr", "tables", "Reading zarr folders") from None
    need_memory(table, "its table", _declared_bytes(table))
    check_zarr(table)
    try:
        data: Any = anndata.read_zarr(table)
        if hasattr(data.X, "check_format"):
            data.X.check_format(full_check=True)
    except Exception as error:  # zarr, its codecs, anndata's registry and scipy have errors of their own
        raise unreadable(table, "AnnData", error) from None
    return data


def need_pieces(table: Path, names: Sequence[str]) -> None:
    """Refuse arrays that lack a piece: zarr puts zeros where a file is missing.

    Zarr leaves a piece out, too, where all its values equal the fill value, so a column with a single category has
    none; other arrays cannot be told from an interrupted copy.
    """
    import zarr

    try:
        group: Any = zarr.open_group(str(table), mode="r")
        missing = [line for name in names for line in _missing(group, name)]
    except Exception as error:  # zarr has errors of its own
        raise unreadable(table, "AnnData", error) from None
    if missing:
        raise DataError(
            f"{table}: {missing[0]}; copy it again, or save it again in full: zarr.config.set("
            "{'array.write_empty_chunks': True}) before write_zarr"
        )


def _missing(group: Any, name: str) -> Iterator[str]:
    if name not in group:
        return
    item = group[name]
    if not hasattr(item, "nchunks"):
        codes = f"{name}/codes"
        one = codes in group and f"{name}/categories" in group and group[f"{name}/categories"].shape[0] <= 1
        for part in item:
            if not (one and part == "codes"):
                yield from _missing(group, f"{name}/{part}")
    elif item.nchunks_initialized < item.nchunks and item.size:
        yield f"{name} has {item.nchunks_initialized} of {item.nchunks} pieces"


def _declared_bytes(table: Path) -> int:
    """Bytes of all arrays; refuses links, devices, codecs that are not on the list, and far more than is stored."""
    declared, stored = 0, 0
    for path in table.rglob("*"):
        if path.is_symlink():
            raise DataError(f"{path} is a link, which is not followed: copy the data into the folder")
        if path.is_dir():
            continue
        if not path.is_file():
            raise DataError(f"{path} is a pipe or a device, expected a file: copy the data into the folder")
        stored += path.stat().st_size
        if path.name in _DESCRIPTIONS:
            for about in _arrays(path):
                for codec in _codecs(about):
                    if codec not in CODECS:
                        raise DataError(
                            f"{path} names the codec {shown(codec)}, which may run code; expected one of "
                            f"{named(sorted(CODECS))}: save the data again with one of them"
                        )
                declared += _array_bytes(path, about)
    if declared > max(BELIEVED_BYTES, BELIEVED_RATIO * stored):
        raise DataError(f"{table} declares {declared:,} bytes, but only {stored:,} bytes are stored; save it again")
    return declared


def _arrays(path: Path) -> list[dict[str, Any]]:
    """The arrays that a description declares, also those of a whole group that is described at once."""
    try:
        if path.stat().st_size > MOST_DESCRIPTION_BYTES:
            raise ValueError
        return list(_within(json.loads(path.read_text(encoding="utf-8"))))
    except (ValueError, TypeError, OSError, RecursionError):
        raise _damaged(path) from None


def _within(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "shape" in value and ("chunks" in value or "chunk_grid" in value):
            yield value
        for item in value.values():
            yield from _within(item)
    elif isinstance(value, list):
        for item in value:
            yield from _within(item)


def _codecs(about: dict[str, Any]) -> Iterator[str]:
    """The names of an array's codecs, in zarr 2 (compressor, filters) and zarr 3 (codecs, nested in shards)."""
    listed = [about.get("compressor"), *_list(about.get("filters"))]
    for codec in [*listed, *_list(about.get("codecs")), *_list(about.get("index_codecs"))]:
        if codec is None:
            continue
        inner = codec.get("configuration") if isinstance(codec, dict) else None
        name = (codec.get("id") or codec.get("name")) if isinstance(codec, dict) else codec
        yield str(name).removeprefix("numcodecs.")
        if isinstance(inner, dict):
            yield from _codecs(inner)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _array_bytes(path: Path, about: dict[str, Any]) -> int:
    try:
        return 8 * max(prod(map(_side, about["shape"])), prod(map(_side, _chunk(about))))
    except (TypeError, ValueError):
        raise _damaged(path) from None


def _chunk(about: dict[str, Any]) -> list[Any]:
    """The shape of one piece of an array (zarr 2, zarr 3): as much is allocated for each, however small the array."""
    grid = about.get("chunk_grid")
    inner = grid.get("configuration") if isinstance(grid, dict) else None
    found = inner.get("chunk_shape") if isinstance(inner, dict) else about.get("chunks")
    return found if isinstance(found, list) else []


def _side(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"a side of an array is {value!r}")
    return value


def _damaged(path: Path) -> DataError:
    return DataError(f"{path} is damaged: it is no description of arrays; save the data again")

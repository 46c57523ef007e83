"""Files that are whole or absent: the one atomic writer of the product, and JSON and CSV on top of it."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import math
import os
import re
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from dasmil.errors import DasmilError, DataError, StorageError

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A hidden temporary file beside ``path``, on the disk and renamed to it when the block ends well, else removed.

    The folder is made where it is missing. The file gets the rights that the user's umask gives to new files, whatever
    the block does with it. What processes that were killed left in the folder is removed first.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_killed(path.parent)
        temporary = path.with_name(f".{path.name}.{_machine()}{os.getpid():08x}{uuid.uuid4().hex[:4]}.tmp")
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        rights = os.fstat(handle).st_mode & 0o777
        os.close(handle)
        yield temporary
        temporary.chmod(rights)  # safetensors and nested writers replace it by a file with rights of their own
        _to_disk(temporary)
        os.replace(temporary, path)
        with suppress(OSError):  # some file systems know no fsync of folders
            _to_disk(path.parent, os.O_RDONLY)
    except DasmilError:
        raise
    except (OSError, SafetensorError) as error:
        raise _storage_error(path, error) from error
    finally:
        if temporary is not None:
            with suppress(OSError):  # of a read-only disk, which says no even where there is no such file
                temporary.unlink(missing_ok=True)


def need_readable(path: Path) -> None:
    """One message where a file or folder may not be read: readers of formats call it missing, damaged or empty."""
    if path.exists() and not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        raise DataError(f"{path} cannot be read (permission denied): change who may read it")


_cleared: dict[Path, int] = {}
_TEMPORARY = re.compile(r"\..+\.(?P<machine>[0-9a-f]{4})(?P<process>[0-9a-f]{8})[0-9a-f]{4}\.tmp", re.DOTALL)


def clear_killed(folder: Path) -> None:
    """Remove temporary files in a folder whose writers, processes of this machine, were killed; once a process."""
    if _cleared.get(folder) == os.getpid() or os.name != "posix":
        return
    _cleared[folder] = os.getpid()
    for file in folder.glob(".*.tmp"):
        found = _TEMPORARY.fullmatch(file.name)
        if found and found["machine"] == _machine() and not _alive(int(found["process"], 16)):
            file.unlink(missing_ok=True)


@cache
def _machine() -> str:
    """Four digits for where a process number means something: this machine, and its container."""
    try:
        numbers = os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # not Linux
        numbers = 0
    return hashlib.sha256(f"{socket.gethostname()} {numbers}".encode()).hexdigest()[:4]


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # somebody else's
        return True
    return True


def _to_disk(path: Path, mode: int = os.O_RDWR) -> None:
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _storage_error(path: Path, error: Exception) -> StorageError:
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
        return StorageError(
            f"the disk is full: {path} could not be written. What was saved before is intact; free some space and run "
            "the same command again (dasmil train: with --resume)"
        )
    return StorageError(f"{path} could not be written: {error}")


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write JSON; NaN and infinity, which JSON does not know, become null."""
    write_text(path, json.dumps(finite(value), indent=2) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write tensors and words about them as safetensors; equal ones give equal files (the library shuffles words)."""
    from safetensors.torch import save

    data = save({name: t.detach().contiguous().cpu() for name, t in tensors.items()}, metadata=dict(header))
    size = int.from_bytes(data[:8], "little")
    found = json.loads(data[8 : 8 + size])
    found["__metadata__"] = dict(sorted(found["__metadata__"].items()))
    text = json.dumps(found, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of eight bytes
    with replacing(path) as temporary:
        temporary.write_bytes(b"".join((len(text).to_bytes(8, "little"), text, memoryview(data)[8 + size :])))


def finite(value: Any) -> Any:
    """The same value with NaN and infinity as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return value


def read_json(path: Path, expected: str = "a JSON file") -> Any:
    """The content of a JSON file; expected: what a user should have given, for the error when there is none."""
    _need_file(path, expected)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not readable as JSON ({error})") from error


def read_object(path: Path, expected: str = "a JSON file") -> dict[str, Any]:
    """The content of a JSON file of named values; a list or a single value is an error."""
    value = read_json(path, expected)
    if not isinstance(value, dict):
        raise DataError(f"{path} holds a {type(value).__name__}, expected named values: {expected}")
    return value


def _need_file(path: Path, expected: str) -> None:
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is a folder, a device or a pipe: expected {expected}")
    if not path.exists():
        raise DataError(f"{path} is missing: expected {expected}")


def json_hash(value: Any) -> str:
    """SHA-256 of a value as JSON, whatever the order of its keys: the name of a configuration by all of its fields."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def differences(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The settings in which two configurations differ, as "name: first -> second"."""
    found: list[str] = []
    for key in sorted({*first, *second}):
        a, b = first.get(key), second.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}: {_short(a)} -> {_short(b)}")
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], columns: Iterable[str] | None = None) -> None:
    """Write rows as CSV; columns default to those of the first row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns or rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def for_spreadsheets(cell: Any) -> Any:
    """Text to export: what a spreadsheet program would take for a formula gets a quotation mark before it."""
    if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r"):
        try:
            float(cell)
        except ValueError:
            return f"'{cell}"
    return cell


def read_csv(path: Path, expected: str = "a CSV file") -> list[dict[str, str]]:
    """The rows of a CSV file that the product wrote, by the names of their columns; a row that is cut is an error."""
    _need_file(path, expected)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # a spreadsheet program marks what it saves
            reader = csv.DictReader(file)
            rows, width = list(reader), len(reader.fieldnames or ())
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} is not readable as CSV ({error})") from error
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values():
            raise DataError(f"{path}: row {number} does not have its {width} values: the file is cut or was edited")
    return rows

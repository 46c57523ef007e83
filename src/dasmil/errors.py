"""Errors that a user can act on: each message says what was found, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DasmilError(Exception):
    """Base of all errors that the command line shows as one line, without a traceback."""


class InputError(DasmilError, ValueError):
    """An argument, a tensor or a configuration that does not fit."""


class DataError(DasmilError, ValueError):
    """A file or a bag whose content is broken or contradictory."""


class StorageError(DataError, OSError):
    """A file that could not be written: the disk is full, the folder is not writable."""


class MissingDependencyError(DasmilError, ImportError):
    """A package of an optional extra is needed and not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed: pip install 'dasmil[{extra}]'"
        )


class BackendError(DasmilError, RuntimeError):
    """A compute backend that was asked for by name and cannot run here."""


def unknown_name(kind: str, found: object, known: Iterable[str]) -> InputError:
    """The error for a name that is in no table, with the nearest known name suggested."""
    names = sorted(known)
    return InputError(f"unknown {kind} {found!r}.{nearest(found, names)} Known: {', '.join(names)}")


def nearest(found: object, known: Iterable[str], most: int = 1) -> str:
    """The nearest known names as a question, with a blank before it; nothing where none is near."""
    near = difflib.get_close_matches(found, list(known), n=most, cutoff=0.4) if isinstance(found, str) else []
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""

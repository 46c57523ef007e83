"""Errors that a user can act on: each message says what was found, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

WORD, MESSAGE = 200, 2000


class DasmilError(Exception):
    """Base of all errors that the command line shows as one line, without a traceback.

    Files and tables of others end up in messages: what is not printable is escaped, what is too long is cut.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class InputError(DasmilError, ValueError):
    """An argument, a tensor or a configuration that does not fit: wrong use, exit code 2 of the command line."""


class DataError(DasmilError, ValueError):
    """A file or a bag whose content is broken or contradictory."""


class ScaleError(DataError):
    """A scale that a file and the user, or a file and itself, do not agree on: no slide is left out because of it."""


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


def one_line(text: str) -> str:
    """A message on one line that a terminal can show: printable, no word (paths aside) and no whole without end."""
    text = text[: 100 * MESSAGE]
    if not text.isprintable():
        text = " ".join("".join(c if c.isprintable() or c in "\t\n\r" else _escaped(c) for c in text).split())
    words = [word if len(word) <= WORD or "/" in word else f"{word[:WORD]}..." for word in text.split(" ")]
    text = " ".join(words)
    return text if len(text) <= MESSAGE else f"{text[: MESSAGE * 2 // 3]} ... {text[-MESSAGE // 4 :]}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def is_text(name: str) -> bool:
    """Whether a name can be written down; that of a file may hold bytes that are no UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: object, most: int = WORD) -> str:
    """A value of somebody else's file as a message repeats it: its repr, cut where it is long."""
    if isinstance(value, str | bytes):
        value = value[: most + 1]
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def named(names: Iterable[object], most: int = WORD) -> str:
    """Names of somebody else's file (columns, datasets) as a list, cut where it is long; 'nothing' for none."""
    text, left = "", 0
    for name in names:
        if left or (text and len(text) + len(str(name)) > most):
            left += 1
        else:
            text += (", " if text else "") + str(name)[:most]
    return f"{text} and {left} more" if left else text or "nothing"


def unknown_name(kind: str, found: object, known: Iterable[str]) -> InputError:
    """The error for a name that is in no table, with the nearest known name suggested."""
    names = sorted(known)
    return InputError(f"unknown {kind} {shown(found)}.{nearest(found, names)} Known: {', '.join(names)}")


def nearest(found: object, known: Iterable[str], most: int = 1) -> str:
    """The nearest known names as a question, with a blank before it; nothing where none is near."""
    near: list[str] = []
    if isinstance(found, str) and len(found) <= WORD:
        near = difflib.get_close_matches(found, list(known), n=most, cutoff=0.4)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""

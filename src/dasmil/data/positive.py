"""Which of two classes is the positive one: as given, else by the usual words, else by value or alphabet."""

from __future__ import annotations

from collections.abc import Sequence

from dasmil.data.text_table import plain_number
from dasmil.errors import InputError, unknown_name

_POSITIVE = """
    positive pos + yes y true present tumor tumour cancer carcinoma malignant metastasis metastatic mutated mutant mut
    mt altered amplified msi msih msihigh dmmr hrd high responder response recurrence relapse progression deceased dead
    died disease diseased case infected
"""
_NEGATIVE = """
    negative neg - no n false absent normal benign healthy control wildtype wild wt mss pmmr hrp low stable alive living
    censored none unaltered
"""
POSITIVE, NEGATIVE = frozenset(_POSITIVE.split()), frozenset(_NEGATIVE.split())


def ordered(names: Sequence[str], positive: str | None = None) -> tuple[str, ...]:
    """Class names with the positive one of two last; positive: the one that was asked for."""
    if positive is not None:
        if positive not in names:
            raise unknown_name("class", positive, names)
        if len(names) != 2:
            raise InputError(f"--positive is for two classes, but there are {len(names)}: order them with --classes")
        return (*(name for name in names if name != positive), positive)
    return tuple(names) if guessed(names) != 0 else (names[1], names[0])


def guessed(names: Sequence[str]) -> int | None:
    """The number of the class that its name makes the positive one of two; None where names do not say."""
    if len(names) != 2:
        return None
    first, second = (_side(name, other) for name, other in (names, names[::-1]))
    return None if first == second else int(second > first)


def positive_text(classes: Sequence[str], given: str = "") -> str:
    """Which class is positive and why, in a sentence; given: who said so ("as given"). Empty without two classes."""
    if len(classes) != 2:
        return ""
    if given:
        return f"Positive: {classes[1]}, {given}"
    if guessed(classes) == 1:
        return f"Positive: {classes[1]}, by its name (--positive {classes[0]} for the other)"
    order = "the larger number" if _is_number(classes[1]) else "only because it is later in the alphabet"
    return f"Positive: {classes[1]}, {order} (--positive {classes[0]} for the other)"


def _side(name: str, other: str) -> int:
    """1: a word for a finding, -1: a word for none, 0: neither."""
    word, rival = _plain(name), _plain(other)
    if rival and word in (f"non{rival}", f"no{rival}", f"not{rival}", f"un{rival}"):
        return -1
    return 1 if word in POSITIVE else -1 if word in NEGATIVE or word.startswith("non") else 0


def _plain(name: str) -> str:
    text = name.strip().casefold()
    return "".join(c for c in text if c.isalnum()) or text


def _is_number(name: str) -> bool:
    return plain_number(name) is not None

"""What if: instances of a bag deleted, kept alone or moved, as a text short enough for an address.

    drop:0-5.9;keep:10-40;move:12.14-16@100,-20

Numbers are those of the unedited bag, whatever was edited before; a move is x, y in the unit of the bag.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch

from dasmil.data.restrict import pick
from dasmil.errors import InputError, shown
from dasmil.types import Bag

Kind = Literal["drop", "keep", "move"]
LONGEST = 30_000
"""Characters of the text of all edits; servers refuse much longer addresses."""
_RANGES = re.compile(r"\d{1,9}(-\d{1,9})?(\.\d{1,9}(-\d{1,9})?)*")


@dataclass(frozen=True, eq=False)
class Edit:
    """What is done to some instances of a bag: deleted (drop), kept alone (keep), or moved by (x, y)."""

    kind: Kind
    instances: np.ndarray
    by: tuple[float, float] = (0.0, 0.0)


def read_edits(text: str, n: int) -> list[Edit]:
    """The edits of a text about a bag of n instances, in their order."""
    if len(text) > LONGEST:
        raise InputError(f"the edits are {len(text):,} characters, expected at most {LONGEST:,}: edit larger regions")
    return [_read(part, n) for part in text.split(";") if part]


def _read(part: str, n: int) -> Edit:
    word, _, rest = part.partition(":")
    ranges, at, by = rest.partition("@")
    kind: Kind | None = next((known for known in get_args(Kind) if known == word), None)
    if kind is None or not _RANGES.fullmatch(ranges) or bool(at) != (kind == "move"):
        raise InputError(f"the edit is {shown(part, 60)}, expected for example drop:0-5.9 or move:12-14@100,-20")
    ends = [one.partition("-") for one in ranges.split(".")]
    spans = [(int(first), int(last or first)) for first, _, last in ends]
    for first, last in spans:
        if not first <= last < n:
            raise InputError(f"the edit names the instances {first} to {last}; the bag has 0 to {n - 1}")
    numbers = np.unique(np.concatenate([np.arange(first, last + 1) for first, last in spans]))
    return Edit(kind, numbers, _offset(by) if at else (0.0, 0.0))


def _offset(text: str) -> tuple[float, float]:
    try:
        x, y = map(float, text.split(","))
    except ValueError:
        x = y = math.nan
    if not (math.isfinite(x) and math.isfinite(y)):
        raise InputError(f"the instances are moved by {shown(text, 40)}, expected x,y in the unit of the bag")
    return x, y


def edited(bag: Bag, edits: Sequence[Edit]) -> tuple[Bag, np.ndarray]:
    """The bag after all edits, and the numbers that its instances had before."""
    kept, coords = np.ones(len(bag), dtype=bool), bag.coords.clone()
    for edit in edits:
        named = np.zeros(len(bag), dtype=bool)
        named[edit.instances] = True
        if edit.kind == "move":
            coords[torch.from_numpy(named), :2] += torch.tensor(edit.by)
        else:
            kept &= named if edit.kind == "keep" else ~named
    if not kept.any():
        raise InputError(f"bag {bag.bag_id!r}: these edits leave no instance; undo the last one")
    left = np.flatnonzero(kept)
    return pick(replace(bag, coords=coords), left), left

"""Fields of view that lie on each other: the images of one patient, each with positions of its own from zero."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasmil.data.cells import Cells

NAMED = re.compile(
    r"(^|_|\W)(image|img|field|fov|core|roi|scene|region|acquisition|section|tile)s?(_?(id|no|name))?$", re.IGNORECASE
)
"""Names of columns that tell fields, for those that hold numbers (1, 2, 3 in every bag)."""
OVERLAID = 1.5
"""Fields lie on each other if their areas sum to this many times the area of all: side by side they sum to one."""


@dataclass(frozen=True)
class Fields:
    """The column that tells the fields of a bag, and the field of every row."""

    column: str
    numbers: np.ndarray
    names: Sequence[str]


def overlaid_fields(cells: Cells, features: Sequence[str] | None = None) -> Fields | None:
    """The column of fields that lie on each other within bags; None where there is none.

    A column of text counts where each of its values lies in one bag; one of numbers by its name (image, field, fov,
    ...). Columns that are features count as such.
    """
    if cells.bags is None or cells.frame is None:
        return None
    frame: Any = cells.frame
    bags = np.unique(cells.bags, return_inverse=True)[1]
    for name in map(str, frame.columns):
        if name in (features or ()):
            continue
        text = frame[name].dtype.kind not in "fiub"
        if not (text or (frame[name].dtype.kind in "iu" and NAMED.search(name))):
            continue
        if not frame[name].notna().all():
            continue
        codes, found = frame[name].astype(str).factorize()
        pairs = np.unique(np.stack([np.asarray(codes), bags]), axis=1)
        nested = len(found) == pairs.shape[1]
        if (nested or NAMED.search(name)) and _overlaid(cells.coords, np.asarray(codes), bags, pairs):
            return Fields(name, np.asarray(codes, dtype=np.int64), [str(value) for value in found])
    return None


def _overlaid(coords: np.ndarray, codes: np.ndarray, bags: np.ndarray, pairs: np.ndarray) -> bool:
    """Whether the fields of most bags with several lie on each other; pairs [2, p]: fields and bags that meet."""
    several = np.flatnonzero(np.bincount(pairs[1]) > 1)
    ratios = []
    for bag in several[:100]:  # enough to tell, and quick in tables of a million cells
        inside = bags == bag
        own, here = coords[inside], codes[inside]
        areas = [float(np.prod(np.ptp(own[here == code, :2], axis=0))) for code in np.unique(here)]
        whole = float(np.prod(np.ptp(own[:, :2], axis=0)))
        if whole > 0:
            ratios.append(sum(areas) / whole)
    return bool(ratios) and float(np.median(ratios)) > OVERLAID

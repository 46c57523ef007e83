"""Maps of a few bags of a run, as numbers: maps.safetensors in its folder, which the report draws."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dasmil.errors import is_text
from dasmil.files import write_tensors
from dasmil.runs import layout
from dasmil.runs.schema import broken
from dasmil.types import Unit

MOST_MAPS = 20


@dataclass(frozen=True, eq=False)
class MapFacts:
    """A bag and what was predicted for it; model: which one explains, and what the bag was to it.

    side, field (left, top, width, height): of an instance and of the map, in the unit of the bag; mpp: of level 0.
    """

    bag_id: str
    words: str
    model: str
    unit: Unit
    side: float
    field: tuple[float, float, float, float]
    mpp: float | None = None


@dataclass(frozen=True, eq=False)
class StoredMap:
    """Centres [n, 2] of the instances of a bag and what each contributed to the logit [n]."""

    facts: MapFacts
    centres: Tensor
    contributions: Tensor


def write_maps(run: Path, maps: Sequence[StoredMap]) -> None:
    """Store them, whole or not at all."""
    tensors = {f"{k}/centres": one.centres.float() for k, one in enumerate(maps)}
    tensors |= {f"{k}/contributions": one.contributions.float() for k, one in enumerate(maps)}
    write_tensors(run / layout.MAPS, tensors, {"maps": json.dumps([asdict(one.facts) for one in maps])})


def read_maps(run: Path) -> list[StoredMap]:
    """The maps that were stored; none for a run without."""
    file = run / layout.MAPS
    if not file.is_file():
        return []
    try:
        with safe_open(file, framework="pt") as stored:
            rows = json.loads((stored.metadata() or {})["maps"])
            if not isinstance(rows, list) or len(rows) > MOST_MAPS:
                raise ValueError(f"{len(rows)} maps")
            found = [
                StoredMap(_facts(row), stored.get_tensor(f"{k}/centres"), stored.get_tensor(f"{k}/contributions"))
                for k, row in enumerate(rows)
            ]
        for one in found:
            n = len(one.contributions)
            if not n or one.centres.shape != (n, 2) or one.contributions.shape != (n,):
                raise ValueError(f"places {tuple(one.centres.shape)} of {n} instances")
            if not (torch.isfinite(one.centres).all() and torch.isfinite(one.contributions).all()):
                raise ValueError("places or contributions that are no numbers")
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise broken(file, f"its maps cannot be read ({error})") from None
    return found


def _facts(row: dict) -> MapFacts:
    facts = MapFacts(**row)
    numbers = [facts.side, *facts.field, *([] if facts.mpp is None else [facts.mpp])]
    texts = [facts.bag_id, facts.words, facts.model]
    if not all(isinstance(v, int | float) and abs(v) < 1e12 for v in numbers) or len(facts.field) != 4:
        raise ValueError(f"a frame of {facts.field}")
    if not all(isinstance(text, str) and is_text(text) for text in texts) or facts.unit not in ("um", "px"):
        raise ValueError("names that are no text")
    if not (facts.side > 0 and facts.field[2] > 0 and facts.field[3] > 0):
        raise ValueError(f"a frame of {facts.field}")
    return facts

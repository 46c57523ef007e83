"""Sums over many pairs: where no single pair decides, kinds, places and distances may.

A grouping says to which cell of a small table a pair belongs; `split_layer` adds the contributions up as it goes, so
that no n x n matrix is ever held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from dasmil.attribution.names import InstanceNames
from dasmil.attribution.rows import Rows
from dasmil.types import Bag, PairSum, Unit
from dasmil.vocabulary import UNIT_SYMBOL

ACROSS = 6  # neighbourhoods along the longer side
MANY = 200  # instances; fewer need no neighbourhoods
MOST_KINDS = 40
BANDS = 8


@dataclass(frozen=True, eq=False)
class Kinds:
    """Pairs by the group of either end: index [n], titles and, for places, centres [g, 2]."""

    index: Tensor
    titles: Sequence[str]
    centres: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.titles), len(self.titles)

    def add(self, total: Tensor, rows: Rows, pair: Tensor) -> None:
        by_column = pair.new_zeros(len(pair), len(self.titles)).index_add_(1, self.index, pair)
        total.index_add_(0, self.index[rows.index], by_column.to(total.dtype))

    def sums(self, total: Tensor) -> tuple[PairSum, ...]:
        """Both directions together, strongest first; groups without a pair are left out."""
        found = []
        for a in range(len(self.titles)):
            for b in range(a, len(self.titles)):
                value = float(total[a, b]) + (float(total[b, a]) if a != b else 0.0)
                if value:
                    places = () if self.centres is None else tuple(tuple(self.centres[k].tolist()) for k in (a, b))
                    found.append(PairSum((self.titles[a], self.titles[b]), value, places))
        return tuple(sorted(found, key=lambda s: -abs(s.contribution)))


@dataclass(frozen=True, eq=False)
class Distances:
    """Pairs by their distance: edges [b] in the bag's unit; the instance itself, b + 1 bands, other sections."""

    edges: Tensor
    section: Tensor | None
    unit: Unit

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.edges) + 3,)

    def add(self, total: Tensor, rows: Rows, pair: Tensor) -> None:
        band = torch.bucketize(rows.distance, self.edges, right=True) + 1
        band[torch.arange(len(band)), rows.index] = 0
        if self.section is not None:
            band[self.section[rows.index, None] != self.section] = len(self.edges) + 2
        total += torch.bincount(band.flatten(), pair.flatten().to(total.dtype), minlength=len(total))

    def sums(self, total: Tensor) -> tuple[PairSum, ...]:
        """In the order of distance; bands without a pair (below the spacing of tiles, other sections) are left out."""
        unit, edges = UNIT_SYMBOL[self.unit], [f"{edge:,.4g}" for edge in self.edges.tolist()]
        titles = ["with itself", f"up to {edges[0]} {unit}"]
        titles += [f"{a} to {b} {unit}" for a, b in pairwise(edges)]
        titles += [f"over {edges[-1]} {unit}", "other section"]
        found = zip(titles, total.tolist(), strict=True)
        return tuple(PairSum((title,), float(value)) for title, value in found if value)


Grouping = Kinds | Distances


def groupings(bag: Bag, coords: Tensor, section: Tensor | None) -> dict[str, Grouping]:
    """What the pairs of a bag can be added up by: distances always, kinds and neighbourhoods where there are any."""
    found: dict[str, Grouping] = {}
    if bag.instance_labels is not None:
        kinds, index = bag.instance_labels.unique(return_inverse=True)
        if 1 < len(kinds) <= MOST_KINDS:
            names = InstanceNames(bag)
            found["types"] = Kinds(index.to(coords.device), [names.kind(int(kind)) for kind in kinds])
    if len(bag) >= MANY:
        found["neighbourhoods"] = neighbourhoods(bag, coords.device)
    reach = float((coords.amax(0) - coords.amin(0)).norm())
    if len(bag) > 1 and reach > 0:
        found["distance"] = Distances(_edges(reach).to(coords), section, bag.unit)
    return found


def _edges(reach: float) -> Tensor:
    """Round distances, each about twice the last, up to half of the bag's diagonal."""
    steps = [base * 10.0**power for power in range(-3, 7) for base in (1, 2, 5)]
    return torch.tensor([step for step in steps if step <= reach / 2][-BANDS:] or [reach / 2])


def neighbourhoods(bag: Bag, device: torch.device) -> Kinds:
    """Squares of a coarse grid, each section with its own; named by their centres."""
    xy = bag.coords[:, :2].double().numpy()
    section = np.zeros(len(bag), int) if bag.section is None else bag.section.numpy()
    low = xy.min(0)
    side = max(float((xy.max(0) - low).max()) / ACROSS, 1e-9)
    cell = np.minimum((xy - low) // side, ACROSS - 1).astype(int)
    keys, index = np.unique(np.stack([section, cell[:, 1], cell[:, 0]], 1), axis=0, return_inverse=True)
    centres = low + (keys[:, [2, 1]] + 0.5) * side
    names, unit = InstanceNames(bag), UNIT_SYMBOL[bag.unit]
    where = ["" if bag.section is None else f"{names.section(int(key[0]))}, " for key in keys]
    titles = [f"{w}around {x:,.0f}, {y:,.0f} {unit}" for w, (x, y) in zip(where, centres, strict=True)]
    return Kinds(torch.from_numpy(index.reshape(-1)).to(device), titles, centres)

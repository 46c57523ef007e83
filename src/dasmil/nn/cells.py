"""Instances on a grid of square cells, for models that read slides as pictures of tiles."""

from __future__ import annotations

import torch
from torch import Tensor

from dasmil.errors import InputError

FARTHEST = 2**52
"""Cells along an axis: beyond it the tile is not the spacing of these instances."""


def cells_of(coords: Tensor, tile: float, section: Tensor | None, apart: int) -> Tensor:
    """(column, row) [n, 2] of each instance: whole tiles from the corner of its section.

    Sections lie side by side and begin at multiples of ``apart`` columns with at least as many empty ones between
    them, so that no window of that width has instances of two.
    """
    if coords.shape[-1] != 2:
        raise InputError(
            f"coords have {coords.shape[-1]} numbers for an instance, but this model lays instances on a plane: give 2"
        )
    numbers = torch.zeros_like(coords[:, 0], dtype=torch.int64) if section is None else section
    cells, begin = torch.zeros(len(coords), 2, dtype=torch.int64, device=coords.device), 0
    for number in numbers.unique().tolist():
        own = numbers == number
        steps = ((coords[own].double() - coords[own].double().amin(0)) / tile).round()
        if float(steps.max()) > FARTHEST:
            raise InputError(
                f"instances lie {float(steps.max()):,.0f} tiles of {tile:g} apart, expected at most {FARTHEST:,}: "
                "tile is the spacing of neighbouring instances, in the unit of the coordinates"
            )
        cells[own] = steps.long() + torch.tensor([begin, 0], device=coords.device)
        begin = (int(cells[own][:, 0].max()) // apart + 2) * apart
    return cells


class Occupancy:
    """The cells that instances lie in, each once [m, 2], ordered by column and row; instances in one are averaged."""

    def __init__(self, cells: Tensor) -> None:
        self.cells, self.of = cells.unique(dim=0, return_inverse=True)
        """of [n]: the number of each instance's cell."""
        self.counts = torch.bincount(self.of, minlength=len(self.cells))

    def mean(self, x: Tensor) -> Tensor:
        """x [n, f] -> [m, f]."""
        if len(self.cells) == len(x):
            return x.new_zeros(x.shape).index_copy(0, self.of, x)
        total = x.new_zeros(len(self.cells), x.shape[1]).index_add(0, self.of, x)
        return total / self.counts.unsqueeze(-1)

    def shared(self, weights: Tensor) -> Tensor:
        """What each instance has of the weights of its cell: [m] -> [n]."""
        return (weights / self.counts)[self.of]


def find_cells(known: Tensor, wanted: Tensor) -> Tensor:
    """The number of each wanted cell [..., 2] among the known ones [m, 2], which are sorted; -1 where it is none."""
    columns, rows = (known[:, axis].unique() for axis in (0, 1))

    def keys(cells: Tensor) -> Tensor:
        """Column and row by rank, so that cells far apart fit into a number; -1 where no known cell has them."""
        column, row = _find(columns, cells[..., 0].contiguous()), _find(rows, cells[..., 1].contiguous())
        return torch.where((column < 0) | (row < 0), -1, column * len(rows) + row)

    return _find(keys(known), keys(wanted))


def _find(known: Tensor, wanted: Tensor) -> Tensor:
    """Places of numbers in a sorted list, -1 where they are not in it."""
    place = torch.searchsorted(known, wanted).clamp(max=len(known) - 1)
    return torch.where(known[place] == wanted, place, -1)

"""Which blocks of rows and columns a radius leaves, for the backends in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dasmil.ops.das_attention.factored import Corner, Factors, Pairs
from dasmil.ops.das_attention.order import space_filling_order

STRETCH = 64
"""Columns that are kept or left out together."""
ROWS = 256
"""Rows that choose their columns together."""


def put_in_order(factors: Factors, pairs: Pairs) -> tuple[Factors, Pairs]:
    """The same with each batch entry in a space-filling order; `pairs.ids` says which."""
    order = space_filling_order(pairs.coords, pairs.mask, pairs.section, STRETCH)
    per_instance = ("q", "k", "value", "ga", "gc", "a", "c")
    moved = {name: _take(t, order) for name in per_instance if (t := getattr(factors, name)) is not None}
    places = {
        name: _take(t, order) for name in ("coords", "mask", "section") if (t := getattr(pairs, name)) is not None
    }
    return factors._replace(**moved), pairs._replace(**places, ids=order)


def put_back(tensor: Tensor, order: Tensor) -> Tensor:
    """[b, n, ...] in the order in which the instances came."""
    return _take(tensor, order.argsort(-1))


def _take(tensor: Tensor, order: Tensor) -> Tensor:
    index = order.view(*order.shape, *[1] * (tensor.ndim - 2)).expand(tensor.shape)
    return tensor.gather(1, index)


def near_blocks(pairs: Pairs, block: int) -> Iterator[Corner]:
    """Blocks of at most about `block` pairs that together hold every pair that is seen; `pairs` are in order."""
    b, n, _ = pairs.coords.shape
    for item in range(b):
        tokens = 0 if pairs.section is None else int((pairs.section[item] < 0).sum())
        yield from _cut(slice(item, item + 1), 0, tokens, None, block // n)
        stretches = _Stretches(pairs, item)
        for first in range(tokens, n, ROWS):
            last = min(first + ROWS, n)
            columns = stretches.near(slice(first, last))
            yield from _cut(slice(item, item + 1), first, last, columns, block // columns.numel())


def near_stretches(pairs: Pairs, stretch: int) -> tuple[Tensor, Tensor]:
    """For each stretch of instances the stretches that hold something it may see; `pairs` are in order.

    Those of stretch s of batch entry i are near[starts[i * count + s] : starts[i * count + s + 1]]; int32.
    """
    counts, near = [], []
    for item in range(pairs.coords.shape[0]):
        stretches = _Stretches(pairs, item, stretch)
        for first in range(0, len(stretches.each), 1024):
            found = stretches.near_each_other(slice(first, first + 1024))
            counts.append(found.sum(1))
            near.append(found.nonzero()[:, 1])
    starts = torch.nn.functional.pad(torch.cat(counts).cumsum(0), (1, 0))
    return starts.to(torch.int32), torch.cat(near).to(torch.int32)


def _cut(batch: slice, first: int, last: int, columns: Tensor | None, rows: int) -> Iterator[Corner]:
    for row in range(first, last, max(1, rows)):
        yield Corner(batch, slice(row, min(row + max(1, rows), last)), columns)


class _Stretches:
    """Boxes around the stretches of instances of one batch entry."""

    def __init__(self, pairs: Pairs, item: int, stretch: int | None = None) -> None:
        stretch = stretch or STRETCH
        assert pairs.reach is not None
        self.coords, self.reach = pairs.coords[item], pairs.reach[item] * 1.00001  # room for roundings
        self.section = None if pairs.section is None else pairs.section[item]
        n = self.coords.shape[0]
        self.each = torch.arange(-(-n // stretch) * stretch, device=self.coords.device).view(-1, stretch)
        inside = self.each.clamp(max=n - 1)
        self.low, self.high = self.coords[inside].amin(1), self.coords[inside].amax(1)
        if self.section is not None:
            self.first, self.last = self.section[inside].amin(1), self.section[inside].amax(1)

    def near(self, rows: slice) -> Tensor:
        """The numbers of the columns in stretches that hold something within the radius of these rows."""
        own = self.coords[rows]
        gap = torch.maximum(self.low - own.amax(0), own.amin(0) - self.high).clamp(min=0)
        near = gap.square().sum(-1) <= self.reach
        if self.section is not None:
            near &= (self.first <= self.section[rows].max()) & (self.last >= self.section[rows].min())
            near |= self.first < 0
        columns = self.each[near].flatten()
        return columns[columns < self.coords.shape[0]]

    def near_each_other(self, some: slice) -> Tensor:
        """[some, all]: whether something of one stretch lies within the radius of something of the other."""
        low, high = self.low[some, None], self.high[some, None]
        gap = torch.maximum(self.low - high, low - self.high).clamp_(min=0).square_().sum(-1)
        near = gap <= self.reach
        if self.section is not None:
            near &= (self.first <= self.last[some, None]) & (self.last >= self.first[some, None])
            near |= (self.first < 0) | (self.first[some, None] < 0)
        return near

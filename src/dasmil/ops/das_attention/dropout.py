"""Which attention weights are dropped: a hash of (seed, head, row, column), so that every backend draws the same ones.

Nothing is stored: the backward pass computes the hash again. The native kernel computes the same numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def draw_seeds(given: int | Tensor | None) -> Tensor:
    """int64 seeds [groups]: those given, or one from torch's generator, so that `torch.manual_seed` repeats dropout."""
    if given is None:
        return torch.randint(0, 2**62, (1,), dtype=torch.int64)
    if isinstance(given, int):
        return torch.tensor([given], dtype=torch.int64)
    return given.detach().to("cpu", torch.int64).reshape(-1)


class Dropout(NamedTuple):
    """What one call drops: a probability, and two 32-bit keys for each head of each bag [items, 1, 1]."""

    p: float
    low: Tensor
    high: Tensor

    def keep(self, items: slice, rows: Tensor, columns: Tensor, like: Tensor) -> Tensor:
        """0 where a weight is dropped and 1 / (1 - p) where it stays [items, rows, columns], with the dtype of `like`.

        rows [r] or [items, r], columns [c] or [items, c]: the numbers of the instances in their bag.
        """
        return self.factors(*self.row_keys(items, rows), column_keys(columns), like)

    def row_keys(self, items: slice, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Two 32-bit keys for each row [items, r]: with that of a column they say what is dropped."""
        row = _mix((rows * 0x9E3779B1 + self.low[items, 0]) & 0xFFFFFFFF)
        return row, _mix(row ^ self.high[items, 0])

    def factors(self, row: Tensor, salt: Tensor, column: Tensor, like: Tensor) -> Tensor:
        """The same as `keep` from the keys of rows [items, r] and columns [c] or [items, c]."""
        pair = ((column.unsqueeze(-2) + row.unsqueeze(-1)) & 0xFFFFFFFF).bitwise_xor_(salt.unsqueeze(-1))
        return (_mix(pair) >= self.threshold << 8).to(like.dtype).mul_(1 / (1 - self.p))

    @property
    def threshold(self) -> int:
        """A weight stays whose 24 highest bits are at least this."""
        return round(self.p * 2**24)


def column_keys(columns: Tensor) -> Tensor:
    return (columns * 0x85EBCA6B) & 0xFFFFFFFF


def make_dropout(p: float, seeds: Tensor, items: int, device: torch.device) -> Dropout:
    """Each seed serves an equal share of the items, numbered from 0: what else is in the batch changes nothing."""
    share = torch.arange(items // max(1, seeds.numel())) * 0x9E3779B1
    low = _mix(((seeds & 0xFFFFFFFF).unsqueeze(1) + share) & 0xFFFFFFFF)
    high = _mix(((seeds >> 32) & 0xFFFFFFFF).unsqueeze(1) ^ low)
    return Dropout(p, low.view(-1, 1, 1).to(device), high.view(-1, 1, 1).to(device))


def _mix(x: Tensor) -> Tensor:
    """Two rounds of multiply and shift that spread every input bit over the 32 output bits."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)

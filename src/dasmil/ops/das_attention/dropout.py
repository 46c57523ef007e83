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
        row = _mix((rows.unsqueeze(-1) * 0x9E3779B1 + self.low[items]) & 0xFFFFFFFF)
        salt = _mix(row ^ self.high[items])
        column = columns.unsqueeze(-2) * 0x85EBCA6B
        kept = (_mix(((column + row) & 0xFFFFFFFF) ^ salt) >> 8) >= round(self.p * 2**24)
        return kept.to(like.dtype).mul_(1 / (1 - self.p))


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

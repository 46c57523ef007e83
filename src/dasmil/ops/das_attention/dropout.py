"""Which attention weights are dropped: a hash of (seed, row, column), so that every backend draws the same ones.

Nothing is stored: the backward pass computes the hash again. The native kernel computes the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor


def draw_seed() -> int:
    """A seed from torch's generator, so that `torch.manual_seed` makes dropout repeatable."""
    return int(torch.randint(0, 2**62, (), dtype=torch.int64))


def keep_factors(seed: int, p: float, like: Tensor, n: int, batch: slice, rows: slice) -> Tensor:
    """0 where a weight is dropped and 1 / (1 - p) where it stays, for rows of the bags `batch` of n instances each.

    Returns [bags, rows, n] with the dtype and device of `like`.
    """
    bags = torch.arange(batch.start, batch.stop, device=like.device).view(-1, 1, 1)
    number = bags * n + torch.arange(rows.start, rows.stop, device=like.device).view(-1, 1)
    row = _mix((number * 0x9E3779B1 + (seed & 0xFFFFFFFF)) & 0xFFFFFFFF)
    salt = _mix(row ^ (seed >> 32))
    column = torch.arange(n, device=like.device) * 0x85EBCA6B
    kept = (_mix(((column + row) & 0xFFFFFFFF) ^ salt) >> 8) >= round(p * 2**24)
    return kept.to(like.dtype).mul_(1 / (1 - p))


def _mix(x: Tensor) -> Tensor:
    """Two rounds of multiply and shift that spread every input bit over the 32 output bits."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)

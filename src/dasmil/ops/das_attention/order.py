"""A space-filling order of the instances, so that those near each other in space are near each other in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def space_filling_order(coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Tensor:
    """A permutation [..., n] of coords [..., n, 2 or 3]: tokens (section -1), then section after section, padding last.

    Within a section the instances follow a Hilbert curve. Only speed depends on it.
    """
    lead, n = coords.shape[:-2], coords.shape[-2]
    kind = torch.ones(*lead, n, dtype=torch.int64, device=coords.device)
    if section is not None:
        section = section.expand(*lead, n).to(torch.int64)
        kind = torch.where(section < 0, 0, kind)
    if mask is not None:
        kind = torch.where(mask | (kind == 0), kind, 2)
    placed = (kind == 1).unsqueeze(-1)
    low = torch.where(placed, coords, torch.inf).amin(-2, keepdim=True)
    extent = (torch.where(placed, coords, -torch.inf).amax(-2, keepdim=True) - low).amax(-1, keepdim=True)
    bits = 15 if coords.shape[-1] == 2 else 10
    cell = (coords - low) / extent.clamp(min=torch.finfo(coords.dtype).tiny) * (2**bits - 1)
    cell = torch.where(placed, cell, 0).nan_to_num(0, 0, 0).clamp(0, 2**bits - 1).to(torch.int32)
    key = _hilbert(list(cell.unbind(-1)), bits).to(torch.int64)
    if section is not None:
        rank = torch.unique(section, return_inverse=True)[1].clamp(max=2**20 - 1)
        key = key + (rank << 40)
    return (key + (kind << 60)).argsort(stable=True, dim=-1)


def _hilbert(axes: list[Tensor], bits: int) -> Tensor:
    """How far along the Hilbert curve the cells lie (J. Skilling 2004, Programming the Hilbert curve)."""
    for bit in range(bits - 1, 0, -1):
        low = (1 << bit) - 1
        for number, axis in enumerate(axes):
            turn = (axis >> bit & 1).bool()
            swap = (axes[0] ^ axis) & low
            first = torch.where(turn, axes[0] ^ low, axes[0] ^ swap)
            if number:
                axes[number] = torch.where(turn, axis, axis ^ swap)
            axes[0] = first
    for number in range(1, len(axes)):
        axes[number] = axes[number] ^ axes[number - 1]
    flip = torch.zeros_like(axes[0])
    for bit in range(bits - 1, 0, -1):
        flip = torch.where((axes[-1] >> bit & 1).bool(), flip ^ ((1 << bit) - 1), flip)
    code = torch.zeros_like(axes[0])
    for bit in range(bits - 1, -1, -1):
        for axis in axes:
            code = code << 1 | ((axis ^ flip) >> bit & 1)
    return code

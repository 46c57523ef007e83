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
    bits = 15 if coords.shape[-1] == 2 else 10
    key = _hilbert([axis.to(torch.int32) for axis in _cells(coords, kind == 1, 2**bits - 1)], bits).to(torch.int64)
    if section is not None:
        rank = torch.unique(section, return_inverse=True)[1].clamp(max=2**20 - 1)
        key = key + (rank << 40)
    return (key + (kind << 60)).argsort(stable=True, dim=-1)


def _cells(coords: Tensor, placed: Tensor, last: int) -> list[Tensor]:
    """In which of the cells 0 to `last` along each axis an instance lies, the longest axis divided from end to end."""
    axes = [
        axis.contiguous() for axis in coords.unbind(-1)
    ]  # whole columns are several times as fast as pairs of numbers
    if not placed.all():
        axes = [torch.where(placed, axis, torch.nan) for axis in axes]
        lows = [axis.nan_to_num(torch.inf).amin(-1, keepdim=True) for axis in axes]
        highs = [axis.nan_to_num(-torch.inf).amax(-1, keepdim=True) for axis in axes]
    else:
        lows = [axis.amin(-1, keepdim=True) for axis in axes]
        highs = [axis.amax(-1, keepdim=True) for axis in axes]
    extent = torch.stack([high - low for low, high in zip(lows, highs)]).amax(0)
    step = extent.clamp(min=torch.finfo(coords.dtype).tiny)
    return [((axis - low) / step * last).nan_to_num(0, 0, 0).clamp(0, last) for axis, low in zip(axes, lows)]


def _hilbert(axes: list[Tensor], bits: int) -> Tensor:
    """How far along the Hilbert curve the cells lie (J. Skilling 2004, Programming the Hilbert curve).

    A choice between two numbers is made with masks of bits, which take a fraction of the time of torch.where.
    """
    for bit in range(bits - 1, 0, -1):
        low = (1 << bit) - 1
        for number, axis in enumerate(axes):
            turn = -(axis >> bit & 1)  # all bits where the bit is set
            swap = (axes[0] ^ axis) & low & ~turn
            axes[0] = axes[0] ^ (swap | turn & low)
            if number:
                axes[number] = axis ^ swap
    for number in range(1, len(axes)):
        axes[number] = axes[number] ^ axes[number - 1]
    flip = torch.zeros_like(axes[0])
    for bit in range(bits - 1, 0, -1):
        flip = flip ^ (-(axes[-1] >> bit & 1) & ((1 << bit) - 1))
    code = torch.zeros_like(axes[0])
    axes = [axis ^ flip for axis in axes]
    for bit in range(bits - 1, -1, -1):
        for axis in axes:
            code = code << 1 | (axis >> bit & 1)
    return code

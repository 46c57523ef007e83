"""A space-filling order of the instances, so that those near each other in space are near each other in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def space_filling_order(coords: Tensor, mask: Tensor | None, section: Tensor | None, leaf: int) -> Tensor:
    """A permutation [..., n] of coords [..., n, 2 or 3]: tokens (section -1), then section after section, padding last.

    Within a section the instances are cut into strips along one axis after another until `leaf` are left, which makes
    their boxes small and nearly square; these leaves follow a Hilbert curve. Only speed depends on it.
    """
    lead, n = coords.shape[:-2], coords.shape[-2]
    coords = coords.reshape(-1, n, coords.shape[-1])
    kind = coords.new_ones(coords.shape[:2], dtype=torch.int64)
    if section is not None:
        section = section.to(torch.int64).expand(*lead, n).reshape(-1, n)
        kind = torch.where(section < 0, 0, kind)
    if mask is not None:
        kind = torch.where(mask.expand(*lead, n).reshape(-1, n) | (kind == 0), kind, 2)
    group = None
    if section is not None or mask is not None:
        rank = 0 if section is None else torch.unique(section, return_inverse=True)[1].clamp(max=2**20 - 1)
        group = (kind << 20) + rank
    axes = _cells(coords, kind == 1, 2**BITS - 1)
    order = _leaves_in_order(_leaves(axes, group, leaf), axes, group, leaf)
    return order.reshape(*lead, n)


BITS = 15
"""Of the number of a cell along an axis. (A Hilbert curve in three dimensions takes ten of them.)"""


def _leaves(axes: list[Tensor], group: Tensor | None, leaf: int) -> Tensor:
    """[b, n]: the instances of each group in strips along the first axis, these in strips along the second, and so on.

    The last axis orders those of a strip, every other strip backwards.
    """
    b, n = axes[0].shape
    place = torch.arange(n, device=axes[0].device).expand(b, n)
    if group is None:
        order, start, count = place, torch.zeros_like(place[:, :1]), torch.full_like(place[:, :1], n)
    else:
        order = _argsort(group)
        sorted_group = group.gather(1, order)
        start = torch.searchsorted(sorted_group, sorted_group)
        count = torch.searchsorted(sorted_group, sorted_group, right=True) - start
    parts = (count / leaf).pow(1 / len(axes)).ceil().clamp(min=1)
    backwards = None
    for number, axis in enumerate(axes):
        cell = axis.gather(1, order) if number or group is not None else axis
        if backwards is not None:
            cell = cell ^ backwards
        piece = start if group is not None else start // leaf  # both grow from piece to piece
        order = order.gather(1, _argsort((piece << BITS) + cell))
        if number + 1 < len(axes):
            size = (count / parts / leaf).ceil().to(torch.int64).clamp(min=1) * leaf
            strip = (place - start) // size
            start, count = start + strip * size, torch.minimum(size, count - strip * size)
            backwards = -(strip & 1) & (2**BITS - 1)
    return order


def _argsort(keys: Tensor) -> Tensor:
    """[b, n], stable. PyTorch sorts integers of one dimension several times as fast as those of two."""
    if len(keys) == 1:
        return keys[0].argsort(stable=True)[None]
    return keys.argsort(stable=True, dim=-1)


def _leaves_in_order(order: Tensor, axes: list[Tensor], group: Tensor | None, leaf: int) -> Tensor:
    """The leaves of `leaf` instances along a Hilbert curve, group after group; what is left over stays last."""
    b, whole = order.shape[0], order.shape[1] // leaf
    leaves = order[:, : whole * leaf].view(b, whole, leaf)
    middle = leaves[:, :, leaf // 2]
    bits = BITS if len(axes) == 2 else 10
    key = _hilbert([(axis.gather(1, middle) >> BITS - bits).to(torch.int32) for axis in axes], bits).to(torch.int64)
    if group is not None:
        first, last = (group.gather(1, leaves[:, :, end]) for end in (0, -1))
        key = (first << 32) + torch.where(first == last, key, 2**32 - 1)  # one of two groups stays between them
    found = _argsort(key)
    moved = leaves.gather(1, found.unsqueeze(-1).expand_as(leaves)).flatten(1)
    return torch.cat([moved, order[:, whole * leaf :]], 1)


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
    return [
        ((axis - low) / step * last).nan_to_num(0, 0, 0).clamp(0, last).to(torch.int64) for axis, low in zip(axes, lows)
    ]


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

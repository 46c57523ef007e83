"""Sums of vectors, weighted by how far away they are, without a matrix of pairs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS = 1 << 24
"""Distances that are held at a time. Blocks of less than 32 MiB would not go back to the system one by one: small
tensors between them leave holes that the next block does not fit into, and memory grows to that of all pairs."""


class _DistanceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        ctx.save_for_backward(coords, section)
        return _product(values, coords, section)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        coords, section = ctx.saved_tensors
        return _product(gradients[0], coords, section), None, None  # distances are the same both ways


def distance_sum(values: Tensor, coords: Tensor, section: Tensor | None = None) -> Tensor:
    """sum_j |c_i - c_j| v_j of values [..., h, n, d] at coords [..., n, 2]: [..., h, n, d]; across sections 0."""
    found = _DistanceSum.apply(values, coords.detach(), section)
    assert isinstance(found, Tensor)
    return found


def _product(values: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
    n = values.shape[-2]
    step = max(1, ROWS // n)
    parts = []
    for start in range(0, n, step):
        rows = slice(start, start + step)
        distance = torch.cdist(coords[..., rows, :], coords, compute_mode="donot_use_mm_for_euclid_dist")
        if section is not None:
            distance = distance * (section[..., rows].unsqueeze(-1) == section.unsqueeze(-2))
        parts.append(distance.to(values.dtype).unsqueeze(-3) @ values)
    return torch.cat(parts, -2)

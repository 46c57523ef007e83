"""Terms of the logits that depend on the distance alone, one function of it for each head."""

from __future__ import annotations

import torch
from torch import Tensor

BIASES = ("linear", "gaussian", "cauchy", "bins")
LENGTHS = ("gaussian", "cauchy")
"""Those whose bias_scale is a length, which is above 0."""

ROOM = 5e-7
"""Relative room for roundings: a distance that equals a radius or an edge counts as inside, or in the upper bin."""


def distance_bias(kind: str, delta: Tensor, scale: Tensor | None, table: Tensor | None, edges: Tensor | None) -> Tensor:
    """The bias of pairs at distances delta [..., 1 or h, r, c]; scale [..., h] or table [..., h, bins]."""
    if kind == "bins":
        assert table is not None
        assert edges is not None
        bins = bin_of(delta, edges)
        lead = torch.broadcast_shapes(bins.shape[:-2], table.shape[:-1])
        pairs = bins.expand(*lead, *bins.shape[-2:])
        return table.expand(*lead, table.shape[-1]).gather(-1, pairs.flatten(-2)).view(pairs.shape)
    assert scale is not None
    scale = scale[..., None, None]
    if kind == "linear":
        return -scale * delta
    if kind == "gaussian":
        return -0.5 * (delta / scale).square()
    return -torch.log1p((delta / scale).square())


def bin_of(delta: Tensor, edges: Tensor) -> Tensor:
    """The number of edges that are at most delta."""
    return torch.bucketize(delta, edges * (1 - ROOM), right=True)


def scale_slope(kind: str, delta: Tensor, scale: Tensor) -> Tensor:
    """The derivative of the bias by its scale."""
    if kind == "linear":
        return -delta
    ratio = (delta / scale).square()
    if kind == "gaussian":
        return ratio / scale
    return 2 * (1 - 1 / (1 + ratio)) / scale

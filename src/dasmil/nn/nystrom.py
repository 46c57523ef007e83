"""Nystrom attention on sequences no longer than its number of landmarks, without the padding."""

from __future__ import annotations

import math

import torch
from nystrom_attention import NystromAttention
from torch import Tensor


def short_nystrom(attention: NystromAttention, x: Tensor) -> Tensor:
    """What ``attention(x)`` gives for x [b, n, d] with n <= m landmarks, in matrices of n + 1 instead of m rows.

    The package fills the sequence with p = m - n zero vectors, each its own landmark. Its three softmax matrices are
    then one m x m matrix A with p equal rows and columns, so A, its iterated pseudo-inverse and A v all map the space
    spanned by the n instances and the unit vector (1, ..., 1) / sqrt(p) of the padding into itself. In that basis A is
    (n + 1) x (n + 1), and the iteration, started at the same scale, takes the same steps. Exact but for rounding.
    """
    batch, n, _ = x.shape
    heads, landmarks = attention.heads, attention.num_landmarks
    padding = landmarks - n
    query, key, value = (
        part.view(batch, n, heads, -1).transpose(1, 2) for part in attention.to_qkv(x).chunk(3, dim=-1)
    )
    scores = (query * attention.scale) @ key.mT
    if padding:
        # Scores against the padding are 0; its p columns are joined to one of weight p.
        joined = scores.new_full((*scores.shape[:-1], 1), math.log(padding))
        weights = torch.cat([joined, scores], dim=-1).softmax(-1)
        root, share = math.sqrt(padding), padding / landmarks
        corner, edge = (
            scores.new_full((batch, heads, 1, 1), share),
            scores.new_full((batch, heads, 1, n), root / landmarks),
        )
        below = torch.cat([weights[..., :1] / root, weights[..., 1:]], dim=-1)
        a = torch.cat([torch.cat([corner, edge], dim=-1), below], dim=-2)
        columns = torch.cat([share + weights[..., :1].sum(-2) / padding, share + weights[..., 1:].sum(-2)], dim=-1)
        values = torch.cat([value.new_zeros(batch, heads, 1, value.shape[-1]), value], dim=-2)
    else:
        a = scores.softmax(-1)
        columns, values = a.sum(-2), value
    z = a.mT / columns.max()  # the largest row sum of a softmax is 1
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for _ in range(attention.pinv_iterations):
        az = a @ z
        z = 0.25 * z @ (13 * one - az @ (15 * one - az @ (7 * one - az)))
    out = ((a @ z) @ (a @ values))[..., -n:, :]
    if attention.residual:
        out = out + attention.res_conv(value)
    return attention.to_out(out.transpose(1, 2).flatten(2))

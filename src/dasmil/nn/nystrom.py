"""Nystrom attention: sequences no longer than the number of landmarks without the padding, longer ones head by head."""

from __future__ import annotations

import math

import torch
from nystrom_attention import NystromAttention
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.nn.distance_sum import ROWS
from dasmil.nn.linear import Linear, per_run
from dasmil.nn.recompute import part_again


class LayerNorm(nn.LayerNorm):
    """As torch's, for one run or stacked runs: x [..., n, d], weight and bias [d] or [R, d]."""

    def forward(self, input: Tensor) -> Tensor:
        batch = input.shape[:-2]
        found = F.layer_norm(input, self.normalized_shape, eps=self.eps)
        weight = per_run(self.weight, 1, batch)
        found = found * (weight if weight.ndim == 1 else weight.unsqueeze(-2))
        if self.bias is None:  # pyright: ignore[reportUnnecessaryComparison]
            return found
        bias = per_run(self.bias, 1, batch)
        return found + (bias if bias.ndim == 1 else bias.unsqueeze(-2))


def depthwise(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """A convolution with one kernel per channel, for one run or stacked runs: x [..., channels, h, w]."""
    padding, (height, width) = conv.padding, x.shape[-2:]
    if conv.weight.ndim == 4:
        pictures, weight, bias = x.reshape(-1, *x.shape[-3:]), conv.weight, conv.bias
    else:  # [R, ..., channels, h, w]: runs become channels, further batch dimensions stay pictures
        weight = conv.weight.flatten(0, 1)
        bias = None if conv.bias is None else conv.bias.flatten()
        pictures = x.reshape(x.shape[0], -1, *x.shape[-3:]).transpose(0, 1).flatten(1, 2)
    found = F.conv2d(pictures, weight, bias, padding=padding, groups=len(weight))  # pyright: ignore[reportArgumentType]
    if conv.weight.ndim == 4:
        return found.view(x.shape)
    return found.view(-1, x.shape[0], x.shape[-3], height, width).transpose(0, 1).reshape(x.shape)


def short_nystrom(attention: NystromAttention, x: Tensor) -> Tensor:
    """What ``attention(x)`` gives for each bag of x [..., n, d], n <= m landmarks, in matrices of n + 1 rows.

    The package fills the sequence with p = m - n zero vectors, each its own landmark. Its three softmax matrices are
    then one m x m matrix A with p equal rows and columns, so A, its iterated pseudo-inverse and A v all map the space
    spanned by the n instances and the unit vector (1, ..., 1) / sqrt(p) of the padding into itself. In that basis A is
    (n + 1) x (n + 1), and the iteration, started at the same scale, takes the same steps. Exact but for rounding.
    The package starts a batch at a common scale; here each bag has its own, as if it were alone. Runs may be stacked.
    """
    *batch, n, _ = x.shape
    heads, landmarks = attention.heads, attention.num_landmarks
    padding = landmarks - n
    query, key, value = (
        part.unflatten(-1, (heads, -1)).transpose(-3, -2) for part in _linear(attention.to_qkv, x).chunk(3, dim=-1)
    )
    scores = (query * attention.scale) @ key.mT
    if padding:
        # Scores against the padding are 0; its p columns are joined to one of weight p.
        joined = scores.new_full((*scores.shape[:-1], 1), math.log(padding))
        weights = torch.cat([joined, scores], dim=-1).softmax(-1)
        root, share = math.sqrt(padding), padding / landmarks
        corner, edge = (
            scores.new_full((*batch, heads, 1, 1), share),
            scores.new_full((*batch, heads, 1, n), root / landmarks),
        )
        below = torch.cat([weights[..., :1] / root, weights[..., 1:]], dim=-1)
        a = torch.cat([torch.cat([corner, edge], dim=-1), below], dim=-2)
        columns = torch.cat([share + weights[..., :1].sum(-2) / padding, share + weights[..., 1:].sum(-2)], dim=-1)
        values = torch.cat([value.new_zeros(*batch, heads, 1, value.shape[-1]), value], dim=-2)
    else:
        a = scores.softmax(-1)
        columns, values = a.sum(-2), value
    z = a.mT / columns.amax((-2, -1))[..., None, None, None]  # the largest row sum of a softmax is 1
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for _ in range(attention.pinv_iterations):
        az = a @ z
        z = 0.25 * z @ (13 * one - az @ (15 * one - az @ (7 * one - az)))
    out = ((a @ z) @ (a @ values))[..., -n:, :]
    if attention.residual:
        out = out + depthwise(attention.res_conv, value)
    linear, dropout = attention.to_out
    return dropout(_linear(linear, out.transpose(-3, -2).flatten(-2)))


def long_nystrom(attention: NystromAttention, x: Tensor) -> Tensor:
    """What ``attention(x)`` gives for one bag x [n, d], n > m landmarks, without keeping matrices of n x m numbers."""
    n, landmarks = len(x), attention.num_landmarks
    padded = F.pad(x, (0, 0, -n % landmarks, 0))
    q, k, v = (p.unflatten(-1, (attention.heads, -1)).transpose(0, 1) for p in attention.to_qkv(padded).chunk(3, -1))
    q = q * attention.scale
    ql, kl = (p.unflatten(1, (landmarks, -1)).mean(2) for p in (q, k))
    out = by_heads(q, k, v, ql, kl, pseudo_inverse((ql @ kl.mT).softmax(-1), attention.pinv_iterations))
    if attention.residual:
        out = out + attention.res_conv(v.unsqueeze(0)).squeeze(0)
    return attention.to_out(out.transpose(0, 1).flatten(1))[-n:]


def by_heads(q: Tensor, k: Tensor, v: Tensor, ql: Tensor, kl: Tensor, inverse: Tensor) -> Tensor:
    """softmax(q kl^T) inverse (softmax(ql k^T) v) of each head [heads, n, d], a few heads at a time."""
    few = max(1, ROWS // (q.shape[-2] * ql.shape[-2]))
    return torch.cat([part_again(_heads, *parts) for parts in zip(*(x.split(few) for x in (q, k, v, ql, kl, inverse)))])


def _heads(q: Tensor, k: Tensor, v: Tensor, ql: Tensor, kl: Tensor, inverse: Tensor) -> Tensor:
    return (q @ kl.mT).softmax(-1) @ (inverse @ ((ql @ k.mT).softmax(-1) @ v))


def pseudo_inverse(a: Tensor, iterations: int) -> Tensor:
    """Of a [heads, m, m], by iteration from a start that all heads share."""
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    z = a.mT / (a.sum(-1).amax() * a.sum(-2).amax())
    for _ in range(iterations):
        y = a @ z
        z = z @ (13 * one - y @ (15 * one - y @ (7 * one - y))) / 4
    return z


def _linear(layer: nn.Module, x: Tensor) -> Tensor:
    return Linear.forward(layer, x)  # pyright: ignore[reportArgumentType]

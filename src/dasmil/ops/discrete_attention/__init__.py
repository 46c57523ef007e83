"""Self-attention with one learned vector for each interval of distance, exact and in memory that grows with n.

e_ij = q_i.k_j + q_i.r^K_k + k_j.r^Q_k,  z_i = sum_j a_ij (v_j + r^V_k),  k = k(delta_ij) the bin of the pair.
A pair takes its terms from what each instance says to each bin (q.r^K and k.r^Q, n x bins): no n x n x d tensor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dasmil.ops.das_attention.dropout import draw_seeds, make_dropout

PAIRS_AT_ONCE = 2**19
"""Pairs of instances in memory at a time; more rows are computed chunk after chunk, and again in the backward pass."""


class Geometry(NamedTuple):
    """Everything that decides the bins and the dropped weights, without a gradient."""

    coords: Tensor
    mask: Tensor | None
    section: Tensor | None
    bins: int
    self_pair: bool
    distance_scale: float
    dropout_p: float
    seeds: Tensor | None

    def bins_of(self, rows: slice) -> Tensor:
        """The bin [..., rows, n] of each pair; the number ``bins`` stands for no distance."""
        squared: Any = 0
        for axis in self.coords.unbind(-1):
            squared = (axis[..., rows, None] - axis[..., None, :]).square_() + squared
        delta = squared.sqrt_().mul_((self.bins - 1) / self.distance_scale)
        bin_of = delta.round_().clamp_(max=self.bins - 1).long()
        if not self.self_pair:
            i = torch.arange(rows.start, rows.stop, device=bin_of.device)
            bin_of[..., i - rows.start, i] = self.bins
        if self.section is not None:
            other = self.section[..., rows, None] != self.section[..., None, :]
            bin_of.masked_fill_(other, self.bins)
        return bin_of


class Operands(NamedTuple):
    """query [..., h, n, d] (scaled), key, value; what each instance says to each bin: q_bins [..., h, n, bins + 1],
    k_bins [..., h, bins + 1, n]; value_table [..., h, bins + 1, o]. The bin after the last is all zero."""

    query: Tensor
    key: Tensor
    value: Tensor
    q_bins: Tensor | None
    k_bins: Tensor | None
    value_table: Tensor | None

    def of(self, rows: slice) -> Operands:
        part = None if self.q_bins is None else self.q_bins[..., rows, :]
        return self._replace(query=self.query[..., rows, :], q_bins=part)


def attend(rows: slice, geometry: Geometry, operands: Operands) -> Tensor:
    """These rows [..., h, rows, o] of eqs. (das:output), (das:compatibility:impl), from the operands of these rows."""
    query, key, value, q_bins, k_bins, value_table = operands
    n, lead = key.shape[-2], query.shape[:-2]
    bin_of = geometry.bins_of(rows).unsqueeze(-3).expand(*query.shape[:-1], n)
    e = query @ key.mT
    if q_bins is not None:
        e = e + q_bins.gather(-1, bin_of)
    if k_bins is not None:
        e = e + k_bins.gather(-2, bin_of)
    if geometry.mask is not None:
        e = e.masked_fill(~geometry.mask[..., None, None, :], float("-inf"))
    weights = e.softmax(-1)
    if geometry.seeds is not None:
        items, each = lead.numel(), torch.arange(n, device=weights.device)
        dropout = make_dropout(geometry.dropout_p, geometry.seeds, items, weights.device)
        weights = weights * dropout.keep(slice(0, items), each[rows], each, weights).view(weights.shape)
    z = weights @ value
    if value_table is not None:
        in_bin = weights.new_zeros(*weights.shape[:-1], value_table.shape[-2]).scatter_add(-1, bin_of, weights)
        z = z + in_bin @ value_table
    return z


class _InChunks(torch.autograd.Function):
    """attend() chunk after chunk; the backward pass computes each chunk again, so nothing of size n x n is kept."""

    @staticmethod
    def forward(ctx: Any, step: int, geometry: Geometry, *tensors: Tensor | None) -> Tensor:
        operands = Operands(*tensors)  # pyright: ignore[reportArgumentType]
        ctx.chunks = [
            slice(i, min(i + step, operands.query.shape[-2])) for i in range(0, operands.query.shape[-2], step)
        ]
        ctx.geometry = geometry
        ctx.save_for_backward(*tensors)
        out = torch.empty_like(operands.value)
        for rows in ctx.chunks:
            out[..., rows, :] = attend(rows, geometry, operands.of(rows))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        operands = Operands(*ctx.saved_tensors)
        totals = Operands(*(None if t is None else torch.zeros_like(t) for t in operands))  # pyright: ignore[reportArgumentType]
        for rows in ctx.chunks:
            with torch.enable_grad():
                leaves = [None if t is None else t.detach().requires_grad_() for t in operands.of(rows)]
                z = attend(rows, ctx.geometry, Operands(*leaves))  # pyright: ignore[reportArgumentType]
            found = iter(torch.autograd.grad(z, [t for t in leaves if t is not None], gradients[0][..., rows, :]))
            for total in totals.of(rows):
                if total is not None:
                    total += next(found)
        return None, None, *totals


def discrete_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    coords: Tensor,
    *,
    bins: int,
    key_table: Tensor | None = None,
    query_table: Tensor | None = None,
    value_table: Tensor | None = None,
    scale: float,
    distance_scale: float = 1.0,
    qk_twice: bool = False,
    self_pair: bool = True,
    mask: Tensor | None = None,
    section: Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | Tensor | None = None,
) -> Tensor:
    """Attend over a bag with a learned vector for each of ``bins`` intervals of the distance.

    Shapes: query, key [..., h, n, d]; value [..., h, n, o]; coords [..., n, 2 or 3]; tables [..., h, bins, d or o].
    The bin of a pair is round(delta (bins - 1)), delta = distance / distance_scale, at most 1. dropout_seed: as in
    das_attention. Returns [..., h, n, o].
    """
    query = query * scale
    # The last row, all zero, is for pairs without a distance.
    tables = [None if t is None else F.pad(t, (0, 0, 0, 1)) for t in (key_table, query_table, value_table)]
    q_bins = None if tables[0] is None else query @ tables[0].mT
    k_bins = None if tables[1] is None else scale * (tables[1] @ key.mT)
    operands = Operands(2 * query if qk_twice else query, key, value, q_bins, k_bins, tables[2])
    seeds = draw_seeds(dropout_seed) if dropout_p > 0 else None
    geometry = Geometry(coords.detach(), mask, section, bins, self_pair, distance_scale, dropout_p, seeds)
    n = query.shape[-2]
    step = max(1, PAIRS_AT_ONCE // (n * query.shape[:-2].numel()))
    if step >= n:
        return attend(slice(0, n), geometry, operands)
    z = _InChunks.apply(step, geometry, *operands)
    assert isinstance(z, Tensor)
    return z

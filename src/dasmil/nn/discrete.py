"""Self-attention with one learned vector for each interval of distance, exact and in memory that grows with n."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dasmil.errors import InputError
from dasmil.nn.attention import AttentionHeads, check_embeddings, join, register
from dasmil.nn.linear import per_run
from dasmil.ops.das_attention.dropout import draw_seed, keep_factors

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
    seed: int

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
    if geometry.dropout_p > 0:
        keep = keep_factors(geometry.seed, geometry.dropout_p, weights, n, slice(0, lead.numel()), rows)
        weights = weights * keep.view(weights.shape)
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


class DiscreteDistanceAttention(AttentionHeads):
    """b_ij = r_k, k = round(delta_ij (bins - 1)), delta_ij = distance / distance_scale, at most 1.

    Implements eqs. (das:output) and (das:compatibility:impl) with the encodings of Wu et al. (2021), as the end of
    section (method:prior) describes. x [..., n, in], coords [..., n, 2 or 3] -> [..., n, out]; tables key_embed,
    query_embed [heads, bins, hidden], value_embed [heads, bins, out / heads]. qk_twice counts q.k twice.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        hidden: int,
        heads: int = 1,
        bins: int = 10,
        embeddings: str = "kqv",
        self_pair: bool = True,
        qk_twice: bool = False,
        dropout: float = 0.1,
        distance_scale: float = 1.0,
    ) -> None:
        super().__init__(in_features, out_features, hidden, heads, dropout)
        check_embeddings(embeddings)
        self.qk_twice = qk_twice
        if bins < 2:
            raise InputError(f"bins is {bins}, expected 2 or more")
        self.bins, self.self_pair, self.distance_scale = bins, self_pair, distance_scale
        for letter, name, size in (("k", "key", hidden), ("q", "query", hidden), ("v", "value", out_features // heads)):
            register(self, f"{name}_embed", torch.randn(heads, bins, size) if letter in embeddings else None)

    def forward(self, x: Tensor, coords: Tensor, mask: Tensor | None = None, section: Tensor | None = None) -> Tensor:
        query, key, value = self.project(x)
        query = query * self.scale
        n, batch = x.shape[-2], x.shape[:-2]

        def table(name: str) -> Tensor | None:
            """[..., heads, bins + 1, size]: the last row, all zero, is for pairs without a distance."""
            parameter = getattr(self, name)
            return None if parameter is None else F.pad(per_run(parameter, 3, batch), (0, 0, 0, 1))

        key_table, query_table, value_table = table("key_embed"), table("query_embed"), table("value_embed")
        q_bins = None if key_table is None else query @ key_table.mT
        k_bins = None if query_table is None else self.scale * (query_table @ key.mT)
        operands = Operands(2 * query if self.qk_twice else query, key, value, q_bins, k_bins, value_table)
        seed = draw_seed() if self.dropout_now > 0 else 0
        scale, dropout = self.distance_scale, self.dropout_now
        geometry = Geometry(coords.detach(), mask, section, self.bins, self.self_pair, scale, dropout, seed)
        step = max(1, PAIRS_AT_ONCE // (n * query.shape[:-2].numel()))
        if step >= n:
            return join(attend(slice(0, n), geometry, operands))
        z = _InChunks.apply(step, geometry, *operands)
        assert isinstance(z, Tensor)
        return join(z)

"""Self-attention with one learned vector for each interval of distance, exact and in memory that grows with n."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dasmil.errors import InputError
from dasmil.nn.attention import AttentionHeads, check_embeddings, join, register
from dasmil.nn.linear import per_run

PAIRS_AT_ONCE = 2**21
"""Pairs of instances in memory at a time; more rows are computed chunk after chunk, and again in the backward pass."""


class DiscreteDistanceAttention(AttentionHeads):
    """b_ij = r_k, k = round(delta_ij (bins - 1)), delta_ij = distance / distance_scale, at most 1.

    Implements eqs. (das:output) and (das:compatibility:impl) with the encodings of Wu et al. (2021), as the end of
    section (method:prior) describes. x [..., n, in], coords [..., n, 2 or 3] -> [..., n, out]; tables key_embed,
    query_embed [heads, bins, hidden], value_embed [heads, bins, out / heads].
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
        dropout: float = 0.1,
        distance_scale: float = 1.0,
    ) -> None:
        super().__init__(in_features, out_features, hidden, heads, dropout)
        check_embeddings(embeddings)
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
        # What every instance says to every bin: q_i . bK_k [..., h, n, bins + 1] and k_j . bQ_k [..., h, bins + 1, n].
        q_bins = None if key_table is None else query @ key_table.mT
        k_bins = None if query_table is None else self.scale * (query_table @ key.mT)

        def rows(start: int, stop: int, query: Tensor, q_bins: Tensor | None) -> Tensor:
            bin_of = self._bins(start, stop, coords, section).unsqueeze(-3).expand(*query.shape[:-1], n)
            e = query @ key.mT
            if q_bins is not None:
                e = e + q_bins.gather(-1, bin_of)
            if k_bins is not None:
                e = e + k_bins.gather(-2, bin_of)
            if mask is not None:
                e = e.masked_fill(~mask[..., None, None, :], float("-inf"))
            weights = F.dropout(e.softmax(-1), self.dropout_now)
            z = weights @ value
            if value_table is not None:
                in_bin = weights.new_zeros(*weights.shape[:-1], self.bins + 1).scatter_add(-1, bin_of, weights)
                z = z + in_bin @ value_table
            return z

        step = max(1, PAIRS_AT_ONCE // (n * query.shape[:-2].numel()))
        if step >= n:
            return join(rows(0, n, query, q_bins))
        chunks = []
        for start in range(0, n, step):
            stop = min(start + step, n)
            part = None if q_bins is None else q_bins[..., start:stop, :]
            z = checkpoint(rows, start, stop, query[..., start:stop, :], part, use_reentrant=False)
            assert isinstance(z, Tensor)
            chunks.append(z)
        return join(torch.cat(chunks, dim=-2))

    def _bins(self, start: int, stop: int, coords: Tensor, section: Tensor | None) -> Tensor:
        """The bin [..., rows, n] of each pair; ``bins`` stands for no distance."""
        with torch.no_grad():
            difference = coords[..., start:stop, None, :] - coords[..., None, :, :]
            delta = difference.square().sum(-1).sqrt() / self.distance_scale
            bin_of = (delta * (self.bins - 1)).round().clamp(max=self.bins - 1).long()
            if not self.self_pair:
                i = torch.arange(start, stop, device=coords.device)
                bin_of[..., i - start, i] = self.bins
            if section is not None:
                bin_of.masked_fill_(section[..., start:stop, None] != section[..., None, :], self.bins)
            return bin_of

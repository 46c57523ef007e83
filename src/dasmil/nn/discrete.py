"""The layer of self-attention with one learned vector for each interval of distance."""

from __future__ import annotations

import torch
from torch import Tensor

from dasmil.errors import InputError
from dasmil.nn.attention import AttentionHeads, check_embeddings, join, register
from dasmil.nn.linear import per_run
from dasmil.ops.discrete_attention import discrete_attention


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
        batch = x.shape[:-2]

        def table(name: str) -> Tensor | None:
            parameter = getattr(self, name)
            return None if parameter is None else per_run(parameter, 3, batch)

        z = discrete_attention(
            query, key, value, coords, bins=self.bins, key_table=table("key_embed"), query_table=table("query_embed"),
            value_table=table("value_embed"), scale=self.scale, distance_scale=self.distance_scale,
            qk_twice=self.qk_twice, self_pair=self.self_pair, mask=mask, section=section, **self.dropout_now(),
        )  # fmt: skip
        return join(z)

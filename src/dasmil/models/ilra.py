"""ILRA-MIL: a few latent vectors read the bag and write it anew, layer after layer."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from dasmil.errors import InputError
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Size
from dasmil.nn import Linear
from dasmil.nn.linear import per_run
from dasmil.nn.multihead import MultiHead
from dasmil.nn.nystrom import LayerNorm


class GatedRead(nn.Module):
    """T(Q, K): O = q + MHA(q, k, v), O = O + ReLU(W O), [LayerNorm after each], [O * SiLU(gate Q)].

    q, k, v are linear in Q, K, K, before the projections of the MHA itself, as in the published program.
    """

    def __init__(self, queries: int, keys: int, features: int, heads: int, norm: bool, gate: bool) -> None:
        super().__init__()
        self.attention = MultiHead(features, heads)
        self.query, self.key, self.value = Linear(queries, features), Linear(keys, features), Linear(keys, features)
        self.norm0, self.norm1 = (LayerNorm(features), LayerNorm(features)) if norm else (None, None)
        self.out = Linear(features, features)
        self.gate = Linear(queries, features) if gate else None

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        q = self.query(x)
        found, weights = self.attention(q, self.key(y), self.value(y), mask)
        o = q + found
        if self.norm0 is not None:
            o = self.norm0(o)
        o = o + self.out(o).relu()
        if self.norm1 is not None:
            o = self.norm1(o)
        if self.gate is not None:
            o = o * nn.functional.silu(self.gate(x))
        return o, weights


class Layer(nn.Module):
    """H = T(L, X; gate), X <- T(X, H; gate) with learned latent vectors L [rank, d]."""

    def __init__(self, in_features: int, features: int, heads: int, rank: int, norm: bool) -> None:
        super().__init__()
        self.latent = _latent(rank, features)
        self.read = GatedRead(features, in_features, features, heads, norm, True)
        self.write = GatedRead(in_features, features, features, heads, norm, True)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch = x.shape[:-2]
        latent = per_run(self.latent, 2, batch).expand(*batch, *self.latent.shape[-2:])
        return self.write(x, self.read(latent, x, mask)[0], None)[0]


class ILRAAggregator(nn.Module):
    """z [..., n, f] through the layers; a learned vector reads what is left: [..., features]."""

    def __init__(self, in_features: int, features: int, heads: int, rank: int, layers: int, norm: bool) -> None:
        super().__init__()
        sizes = [in_features, *[features] * (layers - 1)]
        self.layers = nn.ModuleList(Layer(size, features, heads, rank, norm) for size in sizes)
        self.seed = _latent(1, features)
        self.pool = GatedRead(features, features, features, heads, norm, False)

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        for layer in self.layers:
            z = layer(z, mask)
        batch = z.shape[:-2]
        seed = per_run(self.seed, 2, batch).expand(*batch, *self.seed.shape[-2:])
        pooled, weights = self.pool(seed, z, mask)
        return Aggregated(pooled.squeeze(-2), instance_scores=weights.squeeze(-2))


def _latent(rank: int, features: int) -> nn.Parameter:
    bound = math.sqrt(6 / (rank * features + features))
    return nn.Parameter(torch.empty(rank, features).uniform_(-bound, bound))


class ILRAMIL(MILModel):
    """ILRA-MIL: blocks of low rank, latent vectors that read all instances and are read by them; attention pooling.

    Implements the gated blocks of Xiang et al. (2023), the projections of queries, keys and values made twice as in
    their program, and its settings: two layers, rank 1, LayerNorm, 256 features, 8 heads. Memory grows with n.
    """

    name = "ilra-mil"
    paper = "Xiang et al. 2023, Exploring low-rank property in multiple instance learning for whole slide images"
    idle_parameters = ("aggregator.*key.bias",)  # a softmax over the keys does not see what all have in common

    def __init__(
        self,
        *,
        features: Size = 256,
        heads: Count = 8,
        layers: Count = 2,
        rank: Count = 1,
        norm: bool = True,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        if features % heads:
            raise InputError(f"features is {features}, which {heads} heads cannot share evenly: use a multiple")
        self.aggregator = ILRAAggregator(self.encoded, features, heads, rank, layers, norm)
        self.classifier = self.make_classifier(features)
        for part in (self.aggregator, self.classifier):
            for name, module in part.named_modules():
                if isinstance(module, Linear) and not name.endswith(
                    ("attention.query", "attention.key", "attention.value")
                ):
                    nn.init.xavier_normal_(module.weight)

"""WiKG: every instance as head and tail of a knowledge graph, joined to the six that it scores highest."""

from __future__ import annotations

import math
from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.models.bag_by_bag import BagByBag
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Probability, Size
from dasmil.nn import Linear
from dasmil.nn.draws import dropout
from dasmil.nn.nystrom import LayerNorm
from dasmil.nn.recompute import part_again

Join = Literal["bi-interaction", "gcn", "sage"]
Pool = Literal["attention", "mean", "max"]
SCORES = 1 << 22
"""Scores of pairs, or numbers gathered from neighbours, that are held at a time."""


def strongest(head: Tensor, tail: Tensor, k: int) -> Tensor:
    """The k instances j with the largest h_i . t_j of each i [n, k], in blocks of rows."""
    n = len(head)
    step = max(1, SCORES // n)
    with torch.no_grad():
        return torch.cat([(head[i : i + step] @ tail.T).topk(min(k, n), -1).indices for i in range(0, n, step)])


def _hear(head: Tensor, tail: Tensor, index: Tensor, sums: bool) -> Tensor:
    """e_i = sum_j a_ij t_j for rows head [r, d], index [r, k] into tail [n, d]."""
    near = tail[index]
    p = ((near @ head.unsqueeze(-1)).squeeze(-1) / math.sqrt(head.shape[-1])).softmax(-1).unsqueeze(-1)
    own = head.unsqueeze(1)
    gate = (own + p * near + (1 - p) * own).tanh()
    u = near.sum(-1) * gate.sum(-1) if sums else (near * gate).sum(-1)
    return (u.softmax(-1).unsqueeze(1) @ near).squeeze(1)


class WiKGAggregator(BagByBag):
    """x = LeakyReLU(W z + b), moved half-way to its mean; heads, tails, neighbours; read-out, LayerNorm [features]."""

    def __init__(
        self, in_features: int, features: int, neighbours: int, join: str, pool: str, dropout: float, sums: bool
    ) -> None:
        super().__init__()
        self.enter = Linear(in_features, features)
        self.head, self.tail = Linear(features, features), Linear(features, features)
        half = features // 2
        self.idle = nn.ModuleList([Linear(features, half), Linear(features, half), Linear(half, features)])
        self.join1 = Linear(2 * features if join == "sage" else features, features)
        self.join2 = Linear(features, features) if join == "bi-interaction" else None
        self.read1, self.read2 = (Linear(features, half), Linear(half, 1)) if pool == "attention" else (None, None)
        self.norm = LayerNorm(features)
        self.neighbours, self.join, self.pool, self.dropout, self.sums = neighbours, join, pool, dropout, sums

    def bag(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Aggregated:
        x = F.leaky_relu(self.enter(z))
        x = (x + x.mean(0)) / 2
        head, tail = self.head(x), self.tail(x)
        index = strongest(head, tail, self.neighbours)
        step = max(1, SCORES // (self.neighbours * head.shape[-1]))
        heard = [
            part_again(_hear, head[i : i + step], tail, index[i : i + step], self.sums) for i in range(0, len(x), step)
        ]
        z = dropout(self._joined(head, torch.cat(heard)), self.dropout, self.training)
        pooled, weights = self._read(z)
        return Aggregated(self.norm(pooled.unsqueeze(0)).squeeze(0), instance_scores=weights)

    def _joined(self, head: Tensor, heard: Tensor) -> Tensor:
        if self.join == "sage":
            return F.leaky_relu(self.join1(torch.cat([head, heard], -1)))
        found = F.leaky_relu(self.join1(head + heard))
        return found if self.join2 is None else found + F.leaky_relu(self.join2(head * heard))

    def _read(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.read1 is not None and self.read2 is not None:
            weights = self.read2(F.leaky_relu(self.read1(z))).squeeze(-1).softmax(0)
            return weights @ z, weights
        return (z.mean(0) if self.pool == "mean" else z.amax(0)), None


class WiKG(MILModel):
    """WiKG: each instance hears of the six others whose tail fits its head, through a knowledge-aware attention.

    join: how a head and what it hears become one ("bi-interaction", "gcn", "sage"). pooling: "attention", "mean" (that
    of the training script) or "max". product_of_sums: as in the program, whose index letters make (sum t)(sum g) of the
    dot product t . g that the paper has. The gate that the program declares and never uses is kept, because the
    published count includes it. All n^2 scores are looked at, in blocks of rows: memory grows with n, time with n^2.
    """

    name = "wikg"
    paper = "Li et al. 2024, Dynamic graph representation with knowledge-aware attention for histopathology"
    idle_parameters = ("aggregator.idle.*", "aggregator.read2.bias")

    def __init__(
        self,
        *,
        features: Size = 512,
        neighbours: Count = 6,
        join: Join = "bi-interaction",
        pooling: Pool = "attention",
        dropout: Probability = 0.3,
        product_of_sums: bool = False,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        self.aggregator = WiKGAggregator(self.encoded, features, neighbours, join, pooling, dropout, product_of_sums)
        self.classifier = self.make_classifier(features)

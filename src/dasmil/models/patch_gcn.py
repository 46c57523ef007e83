"""Patch-GCN: graph convolutions over neighbouring tiles, then gated attention."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from dasmil.models.bag_by_bag import BagByBag
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Probability, Size
from dasmil.nn import Linear
from dasmil.nn.draws import dropout
from dasmil.nn.neighbours import nearest
from dasmil.nn.nystrom import LayerNorm
from dasmil.nn.recompute import again_in_backward

TINY = 1e-7


class GENConv(nn.Module):
    """y_i = x_i + sum_v a_iv m_v over those v that count i as a neighbour; B_2 ReLU(LN(B_1 y)), d -> 2 d -> d.

    m_v = ReLU(x_v) + 1e-7, a a softmax over v of t m_v, channel by channel, t learned.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))
        self.up, self.norm, self.down = (
            Linear(features, 2 * features),
            LayerNorm(2 * features),
            Linear(2 * features, features),
        )

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        messages = x.relu() + TINY
        logits = (self.temperature * messages)[source]
        index = target.unsqueeze(-1).expand_as(logits)
        most = torch.full_like(x, float("-inf")).scatter_reduce(0, index, logits.detach(), "amax")
        weights = (logits - most[target]).exp()
        total = torch.zeros_like(x).index_add(0, target, weights)
        taken = torch.zeros_like(x).index_add(0, target, weights * messages[source])
        y = x + taken / total.clamp(min=torch.finfo(x.dtype).tiny)
        return self.down(self.norm(self.up(y)).relu())


class PatchGCNAggregator(BagByBag):
    """x0 = ReLU(W z + b), x1 = GENConv(x0), x_l+1 = x_l + ReLU(LN(GENConv(x_l))); all joined, pooled, ReLU(Lin(.))."""

    def __init__(self, in_features: int, features: int, layers: int, neighbours: int, dropout: float) -> None:
        super().__init__()
        self.enter = Linear(in_features, features)
        self.layers = nn.ModuleList(GENConv(features) for _ in range(layers - 1))
        self.norms = nn.ModuleList(LayerNorm(features) for _ in range(layers - 1))
        whole = features * layers
        self.join, self.tanh, self.gate = Linear(whole, whole), Linear(whole, whole), Linear(whole, whole)
        self.weight, self.out = Linear(whole, 1), Linear(whole, whole)
        self.neighbours, self.dropout = neighbours, dropout

    def edges(self, coords: Tensor, section: Tensor | None) -> Tensor:
        """[2, edges], from each instance to its nearest others."""
        others = nearest(coords, self.neighbours + 1, section)[:, 1:]
        source = torch.arange(len(coords), device=coords.device).unsqueeze(-1).expand_as(others)
        there = others >= 0
        return torch.stack([source[there], others[there]])

    def bag(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Aggregated:
        def drop(x: Tensor, p: float = self.dropout) -> Tensor:
            return dropout(x, p, self.training and self.dropout > 0)

        edges = self.edges(coords, section)
        found = [drop(self.enter(z).relu())]
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            x = again_in_backward(layer, found[-1], edges)
            found.append(x if number == 0 else drop(found[-1] + norm(x).relu(), 0.1))
        p = drop(self.join(torch.cat(found, -1)).relu())
        attention = self.weight(drop(self.tanh(p).tanh()) * drop(self.gate(p).sigmoid())).squeeze(-1).softmax(0)
        return Aggregated(self.out((attention @ p).unsqueeze(0)).relu().squeeze(0), instance_scores=attention)


class PatchGCN(MILModel):
    """Patch-GCN: three GENConv layers on the graph of 8 nearest neighbours, dense connections, gated attention.

    Edges go from an instance to its neighbours, so it hears of those that count it among theirs; none across sections.
    The first convolution's LayerNorm is idle, as published. Bags of fewer instances than neighbours have complete
    graphs (the program's builder fails there). For survival the authors take the logits of four intervals as hazards.
    """

    name = "patch-gcn"
    paper = "Chen et al. 2021, Whole slide images are 2D point clouds"
    position = "relative"
    idle_parameters = ("aggregator.norms.0.*", "aggregator.weight.bias")
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {"features": 32}}

    def __init__(
        self,
        *,
        features: Size = 128,
        layers: Count = 4,
        neighbours: Count = 8,
        dropout: Probability = 0.25,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        self.aggregator = PatchGCNAggregator(self.encoded, features, layers, neighbours, dropout)
        self.classifier = self.make_classifier(features * layers)

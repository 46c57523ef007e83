"""RRT-MIL: instances laid out as a square attend within regions, then regions among each other."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.errors import InputError
from dasmil.models.bag_by_bag import BagByBag
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Probability, Size
from dasmil.nn import Linear
from dasmil.nn.draws import dropout
from dasmil.nn.nystrom import LayerNorm
from dasmil.nn.recompute import part_again

Activation = Literal["tanh", "relu"]
CROSS_REGIONS = 8  # a side, whatever the regions of the first layer
CLOSE = 1e-8
SCORES = 1 << 22
"""Scores that are held at a time, of one region at least."""
MOST_SCORES = 1 << 28
"""Of one region, in all heads: about 5 GB."""


def into_regions(x: Tensor, per_side: int) -> Tensor:
    """x [n, d], filled with zeros to a square and cut into per_side^2 blocks: [regions, tokens, d]."""
    side = math.ceil(math.ceil(math.sqrt(len(x))) / per_side) * per_side
    block = side // per_side
    square = F.pad(x, (0, 0, 0, side * side - len(x))).view(per_side, block, per_side, block, -1)
    return square.transpose(1, 2).reshape(per_side**2, block**2, -1)


def from_regions(regions: Tensor, per_side: int, n: int) -> Tensor:
    """The first n rows of the square that the regions make [n, d]."""
    block = math.isqrt(regions.shape[1])
    square = regions.view(per_side, per_side, block, block, -1).transpose(1, 2)
    return square.reshape(-1, regions.shape[-1])[:n]


def _within(q: Tensor, k: Tensor, v: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """Attention in regions [r, heads, tokens, d], the scores plus their convolution along the queries (EPEG)."""
    scores = q @ k.mT
    around = F.conv2d(scores, kernel, bias, padding=(kernel.shape[2] // 2, 0), groups=scores.shape[1])
    return (scores + around).softmax(-1) @ v


class RegionAttention(nn.Module):
    """R-MSA: multi-head attention within each region, x [n, d] -> [n, d]; its padding takes part."""

    def __init__(self, features: int, heads: int, per_side: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.qkv, self.out = Linear(features, 3 * features), Linear(features, features)
        self.conv = nn.Conv2d(heads, heads, (kernel, 1), groups=heads)
        self.heads, self.per_side, self.dropout = heads, per_side, dropout

    def forward(self, x: Tensor) -> Tensor:
        regions = into_regions(x, self.per_side)
        if (scores := self.heads * regions.shape[1] ** 2) > MOST_SCORES:
            raise InputError(
                f"{len(x):,} instances in {self.per_side} x {self.per_side} regions have {scores:,} scores in each, "
                f"expected at most {MOST_SCORES:,}: choose more regions a side"
            )
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(regions).chunk(3, -1))
        q = q / math.sqrt(q.shape[-1])
        weight, bias = self.conv.weight, self.conv.bias
        assert bias is not None
        step = max(1, SCORES // (self.heads * q.shape[-2] ** 2))
        parts = zip(q.split(step), k.split(step), v.split(step), strict=True)
        found = torch.cat([part_again(_within, *part, weight, bias) for part in parts])
        z = self.out(found.transpose(1, 2).flatten(-2))
        return from_regions(dropout(z, self.dropout, self.training), self.per_side, len(x))


class CrossAttention(nn.Module):
    """CR-MSA: representatives of each region attend to those of the others, and hand back what they heard.

    Within a region: L = phi^T z, representatives sum_p softmax_p(L) z_p; output of token p: the sum over k of
    minmax_p(L)_kp softmax_k(L)_kp c'_k.
    """

    def __init__(self, features: int, heads: int, representatives: int, mlp: bool, dropout: float) -> None:
        super().__init__()
        self.qkv, self.out = Linear(features, 3 * features), Linear(features, features)
        self.inner = Linear(features, 128, bias=False) if mlp else None
        self.phi = Linear(128 if mlp else features, representatives, bias=False)
        self.heads, self.dropout = heads, dropout

    def forward(self, x: Tensor) -> Tensor:
        z = into_regions(x, CROSS_REGIONS)
        logits = self.phi(z if self.inner is None else self.inner(z).tanh()).mT  # [regions, k, tokens]
        asked = (logits.softmax(-1) @ z).transpose(0, 1)  # [k, regions, d]
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(asked).chunk(3, -1))
        heard = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
        heard = dropout(self.out(heard.transpose(1, 2).flatten(-2)), self.dropout, self.training)
        low, high = logits.amin(-1, keepdim=True), logits.amax(-1, keepdim=True)
        share = (logits - low) / (high - low + CLOSE) * logits.softmax(-2)
        return from_regions(share.mT @ heard.transpose(0, 1), CROSS_REGIONS, len(x))


class RRTAggregator(BagByBag):
    """e = ReLU(W z + b), x = e + R-MSA(LN(e)), x + CR-MSA(LN(x)), LN, attention pooling [features]."""

    def __init__(
        self, in_features: int, features: int, region: RegionAttention, cross: CrossAttention, shortcut: bool,
        hidden: int, activation: str, dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.enter = Linear(in_features, features)
        self.region, self.cross = region, cross
        self.norm1, self.norm2, self.norm3 = LayerNorm(features), LayerNorm(features), LayerNorm(features)
        self.hidden, self.weight = Linear(features, hidden, bias=False), Linear(hidden, 1, bias=False)
        self.shortcut, self.activation, self.dropout = shortcut, activation, dropout

    def _tokens(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """What is pooled [n, features] and its weights [n]."""
        e = dropout(self.enter(z).relu(), self.dropout, self.training)
        x = e + self.region(self.norm1(e))
        x = x + self.cross(self.norm2(x))
        x = self.norm3(x + e if self.shortcut else x)
        h = self.hidden(x)
        return x, self.weight(h.tanh() if self.activation == "tanh" else h.relu()).squeeze(-1).softmax(0)

    def bag(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Aggregated:
        x, weights = self._tokens(z)
        return Aggregated(weights @ x, instance_scores=weights)

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each token of one bag adds to the embedding [n, features]; it has seen the others by then."""
        x, weights = self._tokens(z)
        return weights.unsqueeze(-1) * x


class RRTMIL(MILModel):
    """RRT-MIL: re-embeds the instances by attention within regions and across them, then AB-MIL.

    Regions are blocks of the instances laid out row by row as a square: positions are not used, the order in the file
    is (for more than 64 instances). The padding of the square takes part, as published. regions: blocks a side;
    kernel: of the EPEG convolution; representatives, cross_heads, cross_mlp: of the attention across regions, which is
    0 for bags of up to 64. Published settings for features of ResNet on CAMELYON16: kernel 15, representatives 1,
    shortcut. Scores of few regions are held at a time, and computed again in the backward pass.
    """

    name = "rrt-mil"
    paper = "Tang et al. 2024, Feature re-embedding: towards foundation model-level performance in pathology"
    position = "absolute"
    permutation_invariant = False
    idle_parameters = ("aggregator.region.conv.bias",)
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {"features": 64}}

    def __init__(
        self,
        *,
        features: Size = 512,
        heads: Count = 8,
        regions: Count = 8,
        kernel: Count = 15,
        representatives: Count = 3,
        cross_heads: Count = 8,
        cross_mlp: bool = False,
        shortcut: bool = False,
        hidden: Size = 128,
        activation: Activation = "tanh",
        dropout: Probability = 0.25,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        if features % heads or features % cross_heads:
            raise InputError(
                f"features is {features}, which {heads} heads and {cross_heads} cross_heads cannot share evenly: "
                "use a multiple of both"
            )
        if kernel % 2 == 0:
            raise InputError(f"kernel is {kernel}, expected an odd number: it is centred")
        inner = 0.1 if dropout else 0.0
        region = RegionAttention(features, heads, regions, kernel, inner)
        cross = CrossAttention(features, cross_heads, representatives, cross_mlp, inner)
        self.aggregator = RRTAggregator(self.encoded, features, region, cross, shortcut, hidden, activation, dropout)
        self.classifier = self.make_classifier(features)
        for part in (self.aggregator, self.classifier):
            for module in part.modules():
                if isinstance(module, Linear | nn.Conv2d):
                    nn.init.xavier_normal_(module.weight)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)
        if not cross_mlp:
            nn.init.uniform_(cross.phi.weight, -(representatives**-0.5), representatives**-0.5)

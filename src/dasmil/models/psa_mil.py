"""PSA-MIL: attention to the nearest instances, weighed by a learned decay with the distance."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.models.bag_by_bag import BagByBag
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Length, Size
from dasmil.nn import Linear
from dasmil.nn.attention import join
from dasmil.nn.neighbours import nearest
from dasmil.nn.nystrom import LayerNorm
from dasmil.nn.recompute import part_again

Decay = Literal["gaussian", "exponential", "inverse-quadratic"]
Pool = Literal["attention", "mean"]
TAU = 0.001  # what is left of the decay at the radius
SHORTEST, LONGEST, FIRST = 1.0, 25.0, (6.0, 8.0)  # radii in tiles: the range, and where heads start
FLOOR = 1e-6
WIDTH = 0.1  # of the bins in which heads are told apart
DIVERSITY = 0.001
GATHERED = 1 << 22
"""Numbers that are gathered from neighbours at a time."""
DENSE = 1000
"""Up to so many instances all pairs are computed, and those that are no neighbours left out: faster than to gather."""


def theta_at(decay: str, radius: float) -> float:
    """The theta for which the decay is TAU at that radius."""
    if decay == "exponential":
        return -math.log(TAU) / radius
    return radius / math.sqrt(-2 * math.log(TAU) if decay == "gaussian" else (1 - TAU) / TAU)


def radius_at(decay: str, theta: float) -> float:
    """The radius at which the decay of that theta is TAU."""
    return -math.log(TAU) / theta if decay == "exponential" else theta / theta_at(decay, 1.0)


def halfway_at(decay: str, theta: float) -> float:
    """The distance at which the decay of that theta is one half."""
    if decay == "exponential":
        return math.log(2) / theta
    return theta * math.sqrt(2 * math.log(2)) if decay == "gaussian" else theta


def theta_range(decay: str) -> tuple[float, float]:
    low, high = sorted(theta_at(decay, radius) for radius in (SHORTEST, LONGEST))
    return low, high


def first_shares(decay: str, heads: int) -> Tensor:
    """Where the heads start: evenly in the middle half between the radii FIRST, as shares of the range of theta."""
    low, high = theta_range(decay)
    a, b = sorted(theta_at(decay, radius) for radius in FIRST)
    quarter = 0.25 * (b - a)
    ends = [(end - low) / (high - low) for end in (a + quarter, b - quarter)]
    return torch.linspace(ends[0], ends[1], heads)


class SpatialAttention(nn.Module):
    """softmax_j(-|q_i - k_j|^2 / (2 sqrt(d)) + log(phi_h(delta_ij) + 1e-6)) over the K_h nearest j of i.

    theta_h = low + share_h (high - low), share in [0, 1] learned; K_h = round(pi r_h^2), r_h the radius at which phi_h
    is 0.001. K_h follows theta but is not differentiated. delta in tiles.
    """

    def __init__(self, features: int, heads: int, decay: str) -> None:
        super().__init__()
        self.qkv, self.out = Linear(features, 3 * features), Linear(features, features)
        self.share = nn.Parameter(first_shares(decay, heads))
        self.heads, self.decay = heads, decay

    def theta(self) -> Tensor:
        low, high = theta_range(self.decay)
        return low + self.share.clamp(0, 1) * (high - low)

    def counts(self) -> list[int]:
        """K of each head."""
        found = [math.pi * radius_at(self.decay, theta) ** 2 for theta in self.theta().tolist()]
        return [round(count) if math.isfinite(count) else 1 for count in found]  # NaN weights give NaN, no error

    def diversity(self) -> Tensor:
        """Entropy, in bits, of how the heads spread over the range of theta."""
        centres = torch.linspace(0, 1, self.heads, dtype=self.share.dtype, device=self.share.device)
        away = self.share.clamp(0, 1).unsqueeze(-1) - centres
        p = (-away.square() / (2 * WIDTH**2)).softmax(-1).mean(0)
        return -(p * torch.log2(p + 1e-10)).sum()

    def forward(self, x: Tensor, tiles: Tensor, section: Tensor | None) -> Tensor:
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for p in self.qkv(x).chunk(3, -1))
        theta, counts = self.theta(), [min(count, len(x)) for count in self.counts()]
        index = nearest(tiles, max(counts), section)
        if len(x) <= DENSE:
            seen = torch.stack([_seen(index[:, :count]) for count in counts])
            return self.out(join(part_again(_attend_all, q, k, v, theta, tiles, seen, self.decay)))
        found = [
            self._head(q[head], k[head], v[head], theta[head], tiles, index[:, :count])
            for head, count in enumerate(counts)
        ]
        return self.out(join(torch.stack(found)))

    def _head(self, q: Tensor, k: Tensor, v: Tensor, theta: Tensor, tiles: Tensor, index: Tensor) -> Tensor:
        step = max(1, GATHERED // (index.shape[1] * q.shape[-1]))
        parts = []
        for start in range(0, len(q), step):
            rows = slice(start, start + step)
            parts.append(part_again(_attend, q[rows], k, v, theta, tiles[rows], tiles, index[rows], self.decay))
        return torch.cat(parts)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, theta: Tensor, here: Tensor, tiles: Tensor, index: Tensor, decay: str
) -> Tensor:
    """Rows q [r, d] over their neighbours, index [r, K] into keys and values [n, d]; -1: none."""
    there = index.clamp(min=0)
    prior = _log_decay((tiles[there] - here.unsqueeze(1)).square().sum(-1), theta, decay)
    near = k[there]
    like = (near @ q.unsqueeze(-1)).squeeze(-1) - near.square().sum(-1) / 2  # |q_i|^2 is the same for all j
    scores = like / math.sqrt(q.shape[-1]) + prior.to(q.dtype)
    weights = scores.masked_fill(index < 0, float("-inf")).softmax(-1)
    return (weights.unsqueeze(1) @ v[there]).squeeze(1)


def _seen(index: Tensor) -> Tensor:
    """Which instances are neighbours [n, n], from their numbers [n, K]; -1: none."""
    n = len(index)
    found = torch.zeros(n, n + 1, dtype=torch.bool, device=index.device)
    return found.scatter_(1, index.where(index >= 0, n), True)[:, :n]


def _attend_all(q: Tensor, k: Tensor, v: Tensor, theta: Tensor, tiles: Tensor, seen: Tensor, decay: str) -> Tensor:
    """All heads [h, n, d] over all pairs, of which seen [h, n, n] are neighbours."""
    squared = (tiles.unsqueeze(0) - tiles.unsqueeze(1)).square().sum(-1)
    prior = _log_decay(squared, theta[:, None, None], decay)
    like = q @ k.mT - k.square().sum(-1).unsqueeze(-2) / 2
    scores = like / math.sqrt(q.shape[-1]) + prior.to(q.dtype)
    return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v


def _log_decay(squared: Tensor, theta: Tensor, decay: str) -> Tensor:
    """log(phi + 1e-6) of squared distances in tiles."""
    if decay == "exponential":
        phi = (-theta * squared.sqrt()).exp()
    elif decay == "gaussian":
        phi = (-squared / (2 * theta.square())).exp()
    else:
        phi = 1 / (1 + squared / theta.square())
    return (phi + FLOOR).log()


class Block(nn.Module):
    """x + attention(LN(x)), then x + W_2 GELU(W_1 LN(x)), four times as wide."""

    def __init__(self, features: int, heads: int, decay: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = LayerNorm(features), LayerNorm(features)
        self.attention = SpatialAttention(features, heads, decay)
        self.up, self.down = Linear(features, 4 * features), Linear(4 * features, features)

    def forward(self, x: Tensor, tiles: Tensor, section: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm1(x), tiles, section)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class PSAAggregator(BagByBag):
    """Adapter, blocks, LayerNorm, attention pooling [features]; the auxiliary loss spreads the heads over lengths."""

    def __init__(
        self, in_features: int, features: int, heads: int, layers: int, decay: str, pool: str, tile: float
    ) -> None:
        super().__init__()
        self.enter, self.adapt1, self.adapt2 = (
            Linear(size, features, bias=False) for size in (in_features, features, features)
        )
        self.blocks = nn.ModuleList(Block(features, heads, decay) for _ in range(layers))
        self.norm = LayerNorm(features, eps=1e-6)
        self.weight = Linear(features, 1) if pool == "attention" else None
        self.tile = tile

    def _tokens(self, z: Tensor, coords: Tensor, section: Tensor | None) -> tuple[Tensor, Tensor]:
        """What is pooled [n, features] and its weights [n]."""
        tiles = (coords - coords.mean(0)) / self.tile
        x = self.enter(z).relu()
        x = x + self.adapt2(self.adapt1(x).relu()).relu()
        for block in self.blocks:
            x = block(x, tiles, section)
        x = self.norm(x)
        if self.weight is None:
            return x, torch.full_like(x[:, 0], 1 / len(x))
        return x, self.weight(x).squeeze(-1).softmax(0)

    def bag(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Aggregated:
        x, weights = self._tokens(z, coords, section)
        diversity = torch.stack([block.attention.diversity() for block in self._attending()]).mean()
        scores = weights if self.weight is not None else None
        return Aggregated(weights @ x, aux_loss=-DIVERSITY * diversity, instance_scores=scores)

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each token of one bag adds to the embedding [n, features]; it has seen its neighbours by then."""
        x, weights = self._tokens(z, coords, section)
        return weights.unsqueeze(-1) * x

    def _attending(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]


class PSAMIL(MILModel):
    """PSA-MIL: attention as a posterior, whose prior falls with the distance; the lengths are learned.

    ``tile`` (None: distance_scale), in the unit of the coordinates, is the length that distances are counted in (in
    training the distance to the nearest neighbour, unless given); heads see the K nearest instances, K from 3 to 1,963
    as the learned length grows, and never across sections. The auxiliary loss is -0.001 x the entropy of how heads
    spread over lengths. The bag loss is that of the logit; the program puts a sigmoid before a loss that has one
    already. Memory grows with n; the program keeps n x n distances.
    """

    name = "psa-mil"
    paper = "Peled et al. 2025, PSA-MIL: a probabilistic spatial attention-based multiple instance learning"
    position = "relative"
    scale_neighbour = 1
    idle_parameters = ("aggregator.weight.bias",)
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {"tile": 42.0}}

    def __init__(
        self,
        *,
        heads: Count = 3,
        head_features: Size = 32,
        layers: Count = 1,
        decay: Decay = "gaussian",
        pooling: Pool = "attention",
        tile: Length | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        features = heads * head_features
        self.aggregator = PSAAggregator(
            self.encoded, features, heads, layers, decay, pooling, tile or self.distance_scale
        )
        self.classifier = self.make_classifier(features)

    def learned_radii(self) -> list[dict[str, Any]]:
        """Rows {layer, head, halfway, radius, neighbours, unit}: where a head's decay is 1/2, and where it ends."""
        assert isinstance(self.aggregator, PSAAggregator)
        tile, rows = self.aggregator.tile, []
        for layer, block in enumerate(self.aggregator.blocks):
            assert isinstance(block, Block)
            attention = block.attention
            for head, (theta, count) in enumerate(zip(attention.theta().tolist(), attention.counts(), strict=True)):
                lengths = {"halfway": halfway_at(attention.decay, theta), "radius": radius_at(attention.decay, theta)}
                row = {"layer": layer, "head": head, "neighbours": count, "unit": self.unit}
                rows.append(row | {name: length * tile for name, length in lengths.items()})
        return rows

"""Long-MIL: attention on the grid of tiles, with a penalty in whole steps and local layers."""

from __future__ import annotations

import math
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.errors import InputError
from dasmil.models.bag_by_bag import BagByBag
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Length, Probability, Size
from dasmil.nn import Linear
from dasmil.nn.attention import join
from dasmil.nn.draws import attention_dropout
from dasmil.nn.nystrom import LayerNorm
from dasmil.nn.recompute import again_in_backward
from dasmil.ops import das_attention
from dasmil.ops.alibi import published_slopes

REACH, BEYOND = 10, 100.0
ROOM = 0.01  # distances on a grid are square roots of whole numbers: none but 10 itself lies within this of 10
EVERYWHERE = 1e9
LocalHeads = Literal["all", "first"]


class Block(nn.Module):
    """x + P(attention(LN(x))), then x + MLP(LN(x)): softmax_j(q.k / sqrt(d) + m_h B_ij), B = -floor(distance)."""

    def __init__(self, features: int, heads: int, mlp: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm, self.norm2 = LayerNorm(features), LayerNorm(features)
        self.qkv, self.out = Linear(features, 3 * features, bias=False), Linear(features, features)
        self.up, self.down = Linear(features, mlp), Linear(mlp, features)

    def forward(self, x: Tensor, grid: Tensor, section: Tensor | None, radius: list[float] | None) -> Tensor:
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for p in self.qkv(self.norm(x)).chunk(3, -1))
        steps = torch.tensor([*range(REACH + 1), BEYOND], dtype=x.dtype, device=x.device)
        slopes = torch.tensor(published_slopes(self.heads), dtype=x.dtype, device=x.device)
        edges = torch.tensor([*(step - ROOM for step in range(1, REACH + 1)), REACH + ROOM], device=x.device)
        more: dict[str, Any] = attention_dropout(self.dropout, self.training)
        more |= {} if radius is None else {"radius": radius}
        z = das_attention(
            q, k, v, grid, scale=q.shape[-1] ** -0.5, bias="bins", bias_table=-slopes[:, None] * steps,
            bias_edges=edges.to(x.dtype), section=section, **more,
        )  # fmt: skip
        assert isinstance(z, Tensor)
        x = x + self.out(join(z))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LongMILAggregator(BagByBag):
    """x = ReLU(W z + b), local blocks, a global one; the mean over the instances [features]."""

    def __init__(
        self, in_features: int, features: int, heads: int, layers: int, dropout: float, step: float, local: str
    ) -> None:
        super().__init__()
        self.enter = Linear(in_features, features)
        self.blocks = nn.ModuleList(Block(features, heads, 4 * features, dropout) for _ in range(layers))
        self.norm = LayerNorm(features)
        self.heads, self.step, self.local = heads, step, local

    def bag(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Aggregated:
        grid = ((coords - coords.amin(0)) / self.step).round()
        x, radius = self.enter(z).relu(), self._radius(grid)
        for number, block in enumerate(self.blocks):
            last = number == len(self.blocks) - 1
            x = again_in_backward(block, x, grid, section, None if last else radius)
        return Aggregated(self.norm(x.mean(0, keepdim=True)).squeeze(0))

    def _radius(self, grid: Tensor) -> list[float]:
        """How far each head of a local block sees, in steps of the grid."""
        if self.local == "all":
            return [REACH + ROOM] * self.heads
        reach = REACH + ROOM
        if bool((grid.amax(0) <= REACH).all()):
            few = grid.unique(dim=0)  # at most 11 x 11 places
            farthest = float(torch.cdist(few, few).amax())
            if farthest <= REACH + ROOM:  # the program cuts its largest penalty, whatever that is
                reach = max(math.floor(farthest + ROOM) - ROOM, 0.0)
        return [reach, *[EVERYWHERE] * (self.heads - 1)]


class LongMIL(MILModel):
    """Long-MIL: two local layers and a global one on tile positions, with a bias of -m_h floor(distance); mean pooling.

    Positions are rounded to a grid of ``step`` (None: distance_scale; in training the distance to the nearest
    neighbour, unless given), in the unit of the coordinates; beyond 10 steps the bias is -100 m_h, and local layers do
    not look there. local_heads="first": as in the program, where a slip leaves only the first head local (and cuts its
    farthest pairs in bags of less than 10 steps). Memory grows with n; the program keeps n x n x heads. The attention
    dropout acts while training only (in the program always).
    """

    name = "long-mil"
    paper = "Li et al. 2023, Long-MIL: scaling long contextual multiple instance learning for histopathology"
    position = "relative"
    scale_neighbour = 1

    def __init__(
        self,
        *,
        features: Size = 384,
        heads: Count = 4,
        layers: Count = 3,
        dropout: Probability = 0.05,
        step: Length | None = None,
        local_heads: LocalHeads = "all",
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        if features % heads:
            raise InputError(f"features is {features}, which {heads} heads cannot share evenly: use a multiple")
        self.aggregator = LongMILAggregator(
            self.encoded, features, heads, layers, dropout, step or self.distance_scale, local_heads
        )
        self.classifier = self.make_classifier(features)

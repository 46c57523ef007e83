"""TransMIL: two layers of Nystrom attention with a convolution over the instances laid out as a square between them."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Unpack

import torch
from nystrom_attention import NystromAttention
from torch import Tensor, nn

from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.nn import Linear
from dasmil.nn.nystrom import short_nystrom


class TransLayer(nn.Module):
    """x + attention(norm(x)) on x [1, n, d]: 8 heads, 256 landmarks, 6 iterations for the pseudo-inverse."""

    def __init__(self, features: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.attention = NystromAttention(
            dim=features,
            dim_head=features // 8,
            heads=8,
            num_landmarks=features // 2,
            pinv_iterations=6,
            dropout=dropout,
        )

    def forward(self, x: Tensor) -> Tensor:
        x_norm = self.norm(x)
        short = x.shape[1] <= self.attention.num_landmarks  # small bags: the same result without the padding
        return x + (short_nystrom(self.attention, x_norm) if short else self.attention(x_norm))


class PPEG(nn.Module):
    """Pyramid position encoding: the square plus its depthwise 7 x 7, 5 x 5, 3 x 3 convolutions; the token passes."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.conv7 = nn.Conv2d(features, features, 7, padding=3, groups=features)
        self.conv5 = nn.Conv2d(features, features, 5, padding=2, groups=features)
        self.conv3 = nn.Conv2d(features, features, 3, padding=1, groups=features)

    def forward(self, x: Tensor, side: int) -> Tensor:
        token, square = x[:, :1], x[:, 1:].mT.unflatten(2, (side, side))
        square = self.conv7(square) + square + self.conv5(square) + self.conv3(square)
        return torch.cat([token, square.flatten(2).mT], dim=1)


class TransMILAggregator(nn.Module):
    """z [..., n, f] -> [..., features], bag by bag: the square and the pseudo-inverse depend on the whole bag."""

    def __init__(self, in_features: int, features: int, dropout: float) -> None:
        super().__init__()
        self.reduce = Linear(in_features, features)
        self.token = nn.Parameter(torch.randn(1, 1, features))
        self.layer1 = TransLayer(features, dropout)
        self.position = PPEG(features)
        self.layer2 = TransLayer(features, dropout)
        self.norm = nn.LayerNorm(features)

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        lead = z.shape[:-2]
        bags = z.reshape(-1, *z.shape[-2:])
        masks = [None] * len(bags) if mask is None else mask.reshape(-1, mask.shape[-1])
        pooled = [self._bag(bag if real is None else bag[real]) for bag, real in zip(bags, masks)]
        return Aggregated(torch.stack(pooled).view(*lead, -1))

    def _bag(self, z: Tensor) -> Tensor:
        h = self.reduce(z).relu()
        side = math.ceil(math.sqrt(len(h)))
        h = torch.cat([h, h[: side * side - len(h)]])  # the first instances again, until the square is full
        x = torch.cat([self.token, h.unsqueeze(0)], dim=1)
        x = self.layer2(self.position(self.layer1(x), side))
        return self.norm(x)[0, 0]


class TransMIL(MILModel):
    """TransMIL: class token, Nystrom attention, PPEG, Nystrom attention; the token is classified.

    Implements algorithms 1 and 2 of Shao et al. (2021). The "position" of an instance is its place in the bag, laid out
    row by row as a square: coordinates are not used, and another order of the instances gives another logit.
    """

    name = "transmil"
    paper = "Shao et al. 2021, TransMIL"
    position = "absolute"
    permutation_invariant = False
    stackable = False
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {}, "camelyon16": {}}

    def __init__(self, *, features: int = 512, dropout: float = 0.1, **common: Unpack[CommonOptions]) -> None:
        super().__init__(**common)
        self.aggregator = TransMILAggregator(self.encoded, features, dropout)
        self.classifier = self.make_classifier(features)

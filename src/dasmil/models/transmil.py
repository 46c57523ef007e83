"""TransMIL: two layers of Nystrom attention with a convolution over the instances laid out as a square between them."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Unpack

import torch
from nystrom_attention import NystromAttention
from torch import Tensor, nn

from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Probability, Range
from dasmil.nn import Linear
from dasmil.nn.draws import Dropout, drawing_alone
from dasmil.nn.linear import per_run
from dasmil.nn.nystrom import LayerNorm, depthwise, long_nystrom, short_nystrom

Features = Annotated[int, Range(16, 65_536)]
"""Eight heads share them, and half of them are the landmarks."""


class TransLayer(nn.Module):
    """x + attention(norm(x)) on x [..., n, d]: 8 heads, 256 landmarks, 6 iterations for the pseudo-inverse."""

    def __init__(self, features: int, dropout: float) -> None:
        super().__init__()
        self.norm = LayerNorm(features)
        self.attention = NystromAttention(
            dim=features,
            dim_head=features // 8,
            heads=8,
            num_landmarks=features // 2,
            pinv_iterations=6,
        )
        self.attention.to_out[1] = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x_norm = self.norm(x)
        if x.shape[-2] <= self.attention.num_landmarks:  # small bags: the same result without the padding
            return x + short_nystrom(self.attention, x_norm)
        return x + long_nystrom(self.attention, x_norm)


class PPEG(nn.Module):
    """Pyramid position encoding: the square plus its depthwise 7 x 7, 5 x 5, 3 x 3 convolutions; the token passes."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.conv7 = nn.Conv2d(features, features, 7, padding=3, groups=features)
        self.conv5 = nn.Conv2d(features, features, 5, padding=2, groups=features)
        self.conv3 = nn.Conv2d(features, features, 3, padding=1, groups=features)

    def forward(self, x: Tensor, side: int) -> Tensor:
        token, square = x[..., :1, :], x[..., 1:, :].mT.unflatten(-1, (side, side))
        convolved = [depthwise(conv, square) for conv in (self.conv7, self.conv5, self.conv3)]
        return torch.cat([token, (sum(convolved) + square).flatten(-2).mT], dim=-2)


class TransMILAggregator(nn.Module):
    """z [..., n, f] -> [..., features]. Bags with padding or with more instances than landmarks go one by one."""

    def __init__(self, in_features: int, features: int, dropout: float) -> None:
        super().__init__()
        self.reduce = Linear(in_features, features)
        self.token = nn.Parameter(torch.randn(1, 1, features))
        self.layer1 = TransLayer(features, dropout)
        self.position = PPEG(features)
        self.layer2 = TransLayer(features, dropout)
        self.norm = LayerNorm(features)

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        lead = z.shape[:-2]
        side = math.ceil(math.sqrt(z.shape[-2]))
        if mask is None and (not lead or side * side + 1 <= self.layer1.attention.num_landmarks):
            return Aggregated(self._bags(z))
        if self.token.ndim > 3:  # stacked runs, each with its own parameters
            parameters = dict(self.named_parameters())
            pooled = []
            for run in range(len(z)):
                own = {name: p[run] for name, p in parameters.items()}
                bag = (z[run], coords[run], None if mask is None else mask[run], None)
                with drawing_alone(run):
                    pooled.append(torch.func.functional_call(self, own, bag).embedding)
            return Aggregated(torch.stack(pooled))
        bags = z.reshape(-1, *z.shape[-2:])
        masks = [None] * len(bags) if mask is None else mask.reshape(-1, mask.shape[-1])
        pooled = [self._bags(bag if real is None else bag[real]) for bag, real in zip(bags, masks)]
        return Aggregated(torch.stack(pooled).view(*lead, -1))

    def _bags(self, z: Tensor) -> Tensor:
        """Bags of one size; only one where it is larger than the number of landmarks."""
        h, lead, n = self.reduce(z).relu(), z.shape[:-2], z.shape[-2]
        side = math.ceil(math.sqrt(n))
        token = per_run(self.token.flatten(-3, -2), 2, lead).expand(*lead, 1, h.shape[-1])
        # The first instances again, until the square is full.
        x = torch.cat([token, h, h[..., : side * side - n, :]], dim=-2)
        x = self.layer2(self.position(self.layer1(x), side))
        return self.norm(x)[..., 0, :]


class TransMIL(MILModel):
    """TransMIL: class token, Nystrom attention, PPEG, Nystrom attention; the token is classified.

    Implements algorithms 1 and 2 of Shao et al. (2021). The "position" of an instance is its place in the bag, laid out
    row by row as a square: coordinates are not used, and another order of the instances gives another logit.
    """

    name = "transmil"
    paper = "Shao et al. 2021, TransMIL"
    position = "absolute"
    permutation_invariant = False
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {}, "camelyon16": {}}

    def __init__(
        self, *, features: Features = 512, dropout: Probability = 0.1, **common: Unpack[CommonOptions]
    ) -> None:
        super().__init__(**common)
        self.aggregator = TransMILAggregator(self.encoded, features, dropout)
        self.classifier = self.make_classifier(features)

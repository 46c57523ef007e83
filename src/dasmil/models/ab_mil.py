"""Attention-based MIL, plain and gated."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from dasmil.models.account import WeightedPooling
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Size
from dasmil.nn import Linear


class AttentionPooling(nn.Module):
    """z' = sum_i a_i z_i, a = softmax_i(w . tanh(V z_i + b) [* sigmoid(U z_i + c)] + d); the instance scores are a."""

    def __init__(self, features: int, hidden: int, *, gated: bool) -> None:
        super().__init__()
        self.tanh = Linear(features, hidden)
        self.gate = Linear(features, hidden) if gated else None
        self.weight = Linear(hidden, 1)

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        h = torch.tanh(self.tanh(z))
        if self.gate is not None:
            h = h * torch.sigmoid(self.gate(z))
        scores = self.weight(h).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        attention = scores.softmax(-1)
        return Aggregated((attention.unsqueeze(-2) @ z).squeeze(-2), instance_scores=attention)

    def account(self, z: Tensor, coords: Tensor, section: Tensor | None) -> WeightedPooling:
        weights = self.forward(z, coords, None, section).instance_scores
        assert weights is not None
        return WeightedPooling(z, weights)


class ABMIL(MILModel):
    """AB-MIL: a weighted mean of the instances, the weight of each computed from that instance alone.

    Implements eq. (8) of Ilse et al. (2018): a_i = softmax_i(w . tanh(V z_i)). As in the program behind the paper's
    table both layers have a bias (that of the last one cancels in the softmax and so gets no gradient).
    Shapes: z [*batch, n, d]; V d -> hidden, w hidden -> 1.
    """

    name = "ab-mil"
    paper = "Ilse et al. 2018, Attention-based deep multiple instance learning"
    idle_parameters = ("aggregator.weight.bias",)
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {"hidden": 15}, "camelyon16": {"hidden": 10}}
    gated: ClassVar[bool] = False

    def __init__(self, *, hidden: Size = 15, **common: Unpack[CommonOptions]) -> None:
        super().__init__(**common)
        self.aggregator = AttentionPooling(self.encoded, hidden, gated=self.gated)
        self.classifier = self.make_classifier(self.encoded)


class GatedABMIL(ABMIL):
    """Gated AB-MIL: a_i = softmax_i(w . (tanh(V z_i) * sigmoid(U z_i))).

    Implements eq. (9) of Ilse et al. (2018), with biases as in ab-mil. Not in the paper's tables.
    """

    name = "gated-ab-mil"
    gated: ClassVar[bool] = True

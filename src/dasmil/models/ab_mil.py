"""Attention-based MIL, plain and gated."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from dasmil.models.account import ModelAccount, PlainPooling, WeightedPooling
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.monotone import monotone_classifier, shares_of_evidence, sum_of_evidence
from dasmil.models.options import Count, Size
from dasmil.nn import Linear
from dasmil.nn.evidence import THRESHOLD


class AttentionPooling(nn.Module):
    """z' = sum_i a_i z_i, a = softmax_i(w . tanh(V z_i + b) [* sigmoid(U z_i + c)] + d); the instance scores are a."""

    def __init__(self, features: int, hidden: int, *, gated: bool, outputs: int = 1) -> None:
        super().__init__()
        self.tanh = Linear(features, hidden)
        self.gate = Linear(features, hidden) if gated else None
        self.weight = Linear(hidden, outputs)

    def scores(self, z: Tensor) -> Tensor:
        """Before the softmax [..., n, outputs]."""
        h = torch.tanh(self.tanh(z))
        return self.weight(h if self.gate is None else h * torch.sigmoid(self.gate(z)))

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        scores = self.scores(z).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        attention = scores.softmax(-1)
        return Aggregated((attention.unsqueeze(-2) @ z).squeeze(-2), instance_scores=attention)

    def account(self, z: Tensor, coords: Tensor, section: Tensor | None) -> ModelAccount:
        weights = self.forward(z, coords, None, section).instance_scores
        assert weights is not None
        return WeightedPooling(z, weights)


class EvidencePooling(AttentionPooling):
    """P_f = sigmoid(log sum_i exp(s_if)): the log-sum-exp of attention scores, one score for each of several concepts.

    The weights of the sum are AB-MIL's attention; the instance scores are their mean over concepts.
    """

    def __init__(self, features: int, hidden: int, *, concepts: int, gated: bool = False) -> None:
        super().__init__(features, hidden, gated=gated, outputs=concepts)
        nn.init.constant_(self.weight.bias, -THRESHOLD)

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        scores = self.scores(z)
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(-1), float("-inf"))
        return Aggregated(sum_of_evidence(scores), instance_scores=scores.softmax(-2).mean(-1))

    def account(self, z: Tensor, coords: Tensor, section: Tensor | None) -> PlainPooling:
        return PlainPooling(shares_of_evidence(self.scores(z)), "sum")


class ABMIL(MILModel):
    """AB-MIL: a weighted mean of the instances, the weight of each computed from that instance alone.

    Implements eq. (8) of Ilse et al. (2018): a_i = softmax_i(w . tanh(V z_i)). As in the program behind the paper's
    table both layers have a bias (that of the last one cancels in the softmax and so gets no gradient).
    Shapes: z [*batch, n, d]; V d -> hidden, w hidden -> 1.
    monotone: the logit can only rise when an instance is added. There is one w for each of ``concepts`` kinds of
    evidence, P_f = sigmoid(log sum_i exp(w_f . tanh(V z_i) + d_f)), and the classifier's weights are above 0.
    """

    name = "ab-mil"
    paper = "Ilse et al. 2018, Attention-based deep multiple instance learning"
    idle_parameters = ("aggregator.weight.bias",)
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {"hidden": 15}, "camelyon16": {"hidden": 10}}
    gated: ClassVar[bool] = False

    def __init__(
        self, *, hidden: Size = 15, monotone: bool = False, concepts: Count = 4, **common: Unpack[CommonOptions]
    ) -> None:
        super().__init__(**common)
        if monotone:
            self.aggregator = EvidencePooling(self.encoded, hidden, gated=self.gated, concepts=concepts)
            self.classifier = monotone_classifier(self, concepts)
            return
        self.aggregator = AttentionPooling(self.encoded, hidden, gated=self.gated)
        self.classifier = self.make_classifier(self.encoded)


class GatedABMIL(ABMIL):
    """Gated AB-MIL: a_i = softmax_i(w . (tanh(V z_i) * sigmoid(U z_i))).

    Implements eq. (9) of Ilse et al. (2018), with biases as in ab-mil. Not in the paper's tables.
    """

    name = "gated-ab-mil"
    gated: ClassVar[bool] = True

"""AEM: attention pooling whose entropy is kept high."""

from __future__ import annotations

from typing import Annotated, Unpack

import torch
from torch import Tensor, nn

from dasmil.models.acmil import HEADS, Attention, QueryAttention, half, shared_heads
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Probability, Range, Size
from dasmil.nn import Linear
from dasmil.nn.gated import GatedBranches
from dasmil.nn.initial import torch_default
from dasmil.nn.linear import per_run

Weight = Annotated[float, Range(0, 1e6)]


def negative_entropy(scores: Tensor) -> Tensor:
    """sum_i A_i ln A_i of A = softmax(scores): [..., n] -> [...]; 0 where the score is -inf."""
    logs = scores.log_softmax(-1)
    return (logs.exp() * logs.masked_fill(scores == float("-inf"), 0.0)).sum(-1)


class AEMAggregator(GatedBranches):
    """sum_i A_i h_i with gated attention A; aux loss: weight x sum_i A_i ln A_i [..., features]."""

    def __init__(self, in_features: int, features: int, hidden: int, entropy_weight: float) -> None:
        super().__init__(in_features, features, hidden, bias=False)
        self.entropy_weight = entropy_weight

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        h, scores = self.attend(z, mask)
        attention = scores.softmax(-1)
        aux_loss = self.entropy_weight * negative_entropy(scores).squeeze(-1)
        return Aggregated((attention @ h).squeeze(-2), aux_loss, attention.squeeze(-2))

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each instance of one bag adds to the embedding [n, features]."""
        h, scores = self.attend(z, None)
        return scores.softmax(-1).mT * h


class AEMHeads(nn.Module):
    """One learned query with several heads; the entropy is their mean [..., features]."""

    def __init__(self, in_features: int, features: int, heads: int, dropout: float, entropy_weight: float) -> None:
        super().__init__()
        self.enter = Linear(in_features, features, bias=False)
        self.query = nn.Parameter(torch.empty(1, features))
        nn.init.normal_(self.query, std=1e-6)
        self.attention = QueryAttention(features, heads, dropout)
        self.entropy_weight = entropy_weight

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        h = self.enter(z).relu()
        scores = self.attention.scores(per_run(self.query, 2, h.shape[:-2]), h, mask)
        attention = scores.softmax(-1)
        aux_loss = self.entropy_weight * negative_entropy(scores).squeeze(-1).mean(-1)
        return Aggregated(self.attention.read(attention, h).squeeze(-2), aux_loss, attention.mean(-3).squeeze(-2))


class AEM(MILModel):
    """AEM: AB-MIL whose loss has entropy_weight x sum_i A_i ln A_i added, so that attention stays spread.

    Implements the regulariser of Zhang et al. (2024) on their gated attention ("gated") or on multi-head attention with
    one learned query ("heads"). The term is not divided by ln n: it grows with the bag, as published. features: half of
    the input where none is given.
    """

    name = "aem"
    paper = "Zhang et al. 2024, AEM: attention entropy maximization for multiple instance learning"
    idle_parameters = ("aggregator.weight.bias", "aggregator.attention.key.bias")

    def __init__(
        self,
        *,
        attention: Attention = "gated",
        features: Size | None = None,
        hidden: Size = 128,
        heads: Count | None = None,
        entropy_weight: Weight = 0.1,
        dropout: Probability = 0.1,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        size = half(features, self.encoded)
        if attention == "gated":
            self.aggregator = AEMAggregator(self.encoded, size, hidden, entropy_weight)
        else:
            shared = shared_heads(size, heads, HEADS)
            self.aggregator = AEMHeads(self.encoded, size, shared, dropout, entropy_weight)
        self.classifier = self.make_classifier(size)
        torch_default(self.aggregator)

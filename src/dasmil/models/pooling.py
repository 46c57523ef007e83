"""Max pooling and mean pooling: the simplest aggregators."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from dasmil.models.ab_mil import EvidencePooling
from dasmil.models.account import PlainPooling
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.monotone import monotone_classifier
from dasmil.models.options import Count, Size
from dasmil.nn import Linear, pool


class PoolAggregator(nn.Module):
    """g(z_1 .. z_n) [..., n, f] -> [..., f]."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        return Aggregated(pool(z, mask, self.kind))

    def account(self, z: Tensor, coords: Tensor, section: Tensor | None) -> PlainPooling:
        return PlainPooling(z, self.kind)


class EvidenceMax(EvidencePooling):
    """P_f = max_i sigmoid(s_if): one instance decides each concept."""

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        return Aggregated(pool(self.scores(z).sigmoid(), mask, "max"))

    def account(self, z: Tensor, coords: Tensor, section: Tensor | None) -> PlainPooling:
        return PlainPooling(self.scores(z).sigmoid(), "max")


class MaxPool(MILModel):
    """MIL with max pool: z'_j = max_i z_ij for each feature j, then the linear classifier.

    Implements eq. (method:z_prime) directly on the encoded instances.
    monotone: the logit can only rise when an instance is added. As in ab-mil, with a maximum in place of the sum:
    P_f = max_i sigmoid(w_f . tanh(V z_i) + d_f) for each of ``concepts`` kinds of evidence, V d -> ``hidden``.
    """

    name = "max-pool"
    paper = "Wang et al. 2018, Revisiting multiple instance neural networks"
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {}, "camelyon16": {}}

    def __init__(
        self, *, monotone: bool = False, hidden: Size = 15, concepts: Count = 4, **common: Unpack[CommonOptions]
    ) -> None:
        super().__init__(**common)
        self.aggregator = EvidenceMax(self.encoded, hidden, concepts=concepts) if monotone else PoolAggregator("max")
        self.classifier = monotone_classifier(self, concepts) if monotone else self.make_classifier(self.encoded)


class MeanPool(MILModel):
    """MIL with mean pool: z' = (1/n) sum_i z_i, then the linear classifier. Not in the paper's tables."""

    name = "mean-pool"
    paper = MaxPool.paper
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {}, "camelyon16": {}}

    def __init__(self, **common: Unpack[CommonOptions]) -> None:
        super().__init__(**common)
        self.aggregator = PoolAggregator("mean")
        self.classifier = self.make_classifier(self.encoded)

    @torch.no_grad()
    def begin_mean(self, direction: Tensor, *, only: bool = False) -> bool:
        assert isinstance(self.classifier, Linear)
        self.classifier.weight[:] = direction
        return True

"""Plain self-attention as the aggregator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

from torch import Tensor, nn

from dasmil.models.account import AttentionLayers
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Bias, Count, Length, Number, Pooling, Probability, Size
from dasmil.nn import DistanceAwareAttention, check_pooling, pool

OUTPUT = 16
"""Outputs of the attention over feature vectors where nothing is said."""


class SAAggregator(nn.Module):
    """Attention layers, one after the other, then pooling: z [..., n, f] -> [..., o]."""

    def __init__(self, layers: list[nn.Module], pooling: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.pooling = check_pooling(pooling)

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        for layer in self.layers:
            z = layer(z, coords, mask, section)
        return Aggregated(pool(z, mask, self.pooling))

    def account(self, z: Tensor, coords: Tensor, section: Tensor | None) -> AttentionLayers:
        return AttentionLayers(z, list(self.layers), self.pooling)


class AttentionModel(MILModel):
    """A model whose aggregator is self-attention of ``out_features`` outputs, shared by ``heads``, and a pooling."""

    @classmethod
    def for_feature_vectors(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Sixteen outputs, or the next multiple of the heads: more overfit."""
        heads = max(1, int(given.get("heads", cls.options()["heads"])))
        return {**super().for_feature_vectors(given), "out_features": math.ceil(OUTPUT / heads) * heads}


class SA(AttentionModel):
    """MIL with SA: z_i = sum_j a_ij x_j W^V, a_ij = softmax_j((x_i W^Q)(x_j W^K)^T / sqrt(d)), then pooling.

    Implements eqs. (self_att), (self_att_compatibility) and (method:z_prime). hidden: size of queries and keys;
    out_features: size of the output (None: that of the input). Memory grows with n, not n^2.
    bias: a term of the logits that depends on the distance alone (None: no distance): "linear" -s delta, "gaussian"
    -delta^2 / (2 s^2), "cauchy" -log(1 + (delta / s)^2), "bins" 16 learned steps up to distance_scale; bias_init: s in
    units of distance_scale, one number or one for each head; train_bias: False keeps it. radius, in the unit of the
    coordinates: instances farther apart do not see each other, and the cost grows with the neighbours.
    """

    name = "sa"
    paper = "Vaswani et al. 2017, Attention is all you need"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "mnist-collage": {"hidden": 10},
        "camelyon16": {"hidden": 10, "out_features": 16},
    }

    def __init__(
        self,
        *,
        hidden: Size = 10,
        out_features: Size | None = None,
        heads: Count = 1,
        pooling: Pooling = "max",
        dropout: Probability = 0.1,
        bias: Bias | None = None,
        bias_init: Number | Sequence[Number] = 1.0,
        train_bias: bool = True,
        radius: Length | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        out = self.encoded if out_features is None else out_features
        layer = DistanceAwareAttention(
            self.encoded, out, hidden=hidden, heads=heads, embeddings="", dropout=dropout, bias=bias,
            bias_init=bias_init, train_bias=train_bias, radius=radius, distance_scale=self.distance_scale,
        )  # fmt: skip
        self.aggregator = SAAggregator([layer], pooling)
        if bias is not None or radius is not None:
            # of this model, though not of its class
            self.position = "relative"  # pyright: ignore[reportAttributeAccessIssue]
        self.classifier = self.make_classifier(out)

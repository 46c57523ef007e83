"""Self-attention with discrete relative positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from dasmil.models.base import CommonOptions
from dasmil.models.options import Bins, Count, Pooling, Probability, Size
from dasmil.models.sa import AttentionModel, SAAggregator
from dasmil.nn.discrete import DiscreteDistanceAttention


class DiscRelSA(AttentionModel):
    """MIL with disc. rel. SA: as das-mil, with b_ij = r_k learned for each of ``bins`` intervals k of the distance.

    Implements eqs. (das:output), (das:compatibility:impl), (method:z_prime); k = round(delta_ij (bins - 1)) with
    delta_ij = distance / distance_scale, at most 1. Memory grows with n, not n^2.
    self_pair: False gives the pair (i, i) no embedding, as the published program did.
    qk_twice: True counts q.k twice beside the terms with distances, as the published program did; not in the equations.
    Departs from the paper: the preset "mnist-collage" has self_pair False, because its table was made so. The recipe
    "paper" sets qk_twice for the same reason.
    """

    name = "disc-rel-sa"
    paper = "Wu et al. 2021, Rethinking and improving relative position encoding for vision transformer"
    position = "relative"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "mnist-collage": {"hidden": 10, "self_pair": False},
        "camelyon16": {"hidden": 10, "out_features": 16},
    }

    def __init__(
        self,
        *,
        hidden: Size = 10,
        out_features: Size | None = None,
        heads: Count = 1,
        bins: Bins = 10,
        pooling: Pooling = "max",
        embeddings: str = "kqv",
        self_pair: bool = True,
        qk_twice: bool = False,
        dropout: Probability = 0.1,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        out = self.encoded if out_features is None else out_features
        layer = DiscreteDistanceAttention(
            self.encoded, out, hidden=hidden, heads=heads, bins=bins, embeddings=embeddings, self_pair=self_pair,
            qk_twice=qk_twice, dropout=dropout, distance_scale=self.distance_scale,
        )  # fmt: skip
        self.aggregator = SAAggregator([layer], pooling)
        self.classifier = self.make_classifier(out)

    @classmethod
    def for_feature_vectors(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """No embedding of the pair (i, i), as in the published program: distances are then found more often."""
        return {**super().for_feature_vectors(given), "self_pair": False}

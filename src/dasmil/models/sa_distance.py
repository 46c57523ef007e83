"""Self-attention that knows distances as today's slide encoders do: by a bias, or by turning queries and keys."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from dasmil.models.base import CommonOptions
from dasmil.models.options import Count, Length, Pooling, Probability, Size
from dasmil.models.sa import AttentionModel, SAAggregator
from dasmil.nn import DistanceAwareAttention
from dasmil.ops.alibi import published_slopes


class SAAlibi(AttentionModel):
    """MIL with SA + ALiBi: e_ij = q_i.k_j / sqrt(d) - m_h delta_ij, then softmax, values and pooling as in sa.

    m_h: the published slopes of the heads (dasmil.ops.alibi_slopes), for distances counted in ``step``, a length in the
    unit of the coordinates: the distance of neighbouring instances (None: distance_scale). train_slopes: True learns
    them from there. radius: as in sa. In two dimensions as in TITAN (Ding et al. 2024). A single head has the slope
    1 / 256, which is next to nothing: the published slopes are made for several heads.
    """

    name = "sa-alibi"
    paper = "Press et al. 2022, Train short, test long: attention with linear biases enables input length extrapolation"
    position = "relative"
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {"hidden": 10, "heads": 4, "step": 28.0}}

    def __init__(
        self,
        *,
        hidden: Size = 10,
        out_features: Size | None = None,
        heads: Count = 2,
        pooling: Pooling = "max",
        dropout: Probability = 0.1,
        step: Length | None = None,
        train_slopes: bool = False,
        radius: Length | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        out = self.encoded if out_features is None else out_features
        per_scale = 1.0 if step is None else self.distance_scale / step
        layer = DistanceAwareAttention(
            self.encoded, out, hidden=hidden, heads=heads, embeddings="", dropout=dropout, bias="linear",
            bias_init=[slope * per_scale for slope in published_slopes(heads)], train_bias=train_slopes,
            radius=radius, distance_scale=self.distance_scale,
        )  # fmt: skip
        self.aggregator = SAAggregator([layer], pooling)
        self.classifier = self.make_classifier(out)


class SARope(AttentionModel):
    """MIL with SA + rotary positions: sa on queries and keys that are turned by their places (dasmil.ops.rotate).

    hidden: a multiple of 4 (pairs of numbers for each of two axes); shortest, longest: the wavelengths, in the unit of
    the coordinates (None: distance_scale / 8 and 8 distance_scale). radius: as in sa.
    """

    name = "sa-rope"
    paper = "Su et al. 2021, RoFormer: enhanced transformer with rotary position embedding"
    position = "relative"
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {"hidden": 12, "shortest": 56.0, "longest": 724.0}}

    def __init__(
        self,
        *,
        hidden: Size = 12,
        out_features: Size | None = None,
        heads: Count = 1,
        pooling: Pooling = "max",
        dropout: Probability = 0.1,
        shortest: Length | None = None,
        longest: Length | None = None,
        radius: Length | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        out = self.encoded if out_features is None else out_features
        wavelengths = (
            self.distance_scale / 8 if shortest is None else shortest,
            self.distance_scale * 8 if longest is None else longest,
        )
        layer = DistanceAwareAttention(
            self.encoded, out, hidden=hidden, heads=heads, embeddings="", dropout=dropout, wavelengths=wavelengths,
            radius=radius, distance_scale=self.distance_scale,
        )  # fmt: skip
        self.aggregator = SAAggregator([layer], pooling)
        self.classifier = self.make_classifier(out)

"""Self-attention over features to which an absolute position encoding was added."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from torch import Tensor, nn

from dasmil.models.account import AttentionLayers
from dasmil.models.base import Aggregated, CommonOptions
from dasmil.models.options import Count, Length, Pooling, Probability, Size
from dasmil.models.sa import AttentionModel, SAAggregator
from dasmil.nn import DistanceAwareAttention
from dasmil.nn.position import AxialEncoding, FourierEncoding


class PositionedAggregator(SAAggregator):
    """Self-attention over x_i + p_i, then pooling: z [..., n, f], coords [..., n, 2] -> [..., o]."""

    def __init__(self, encoding: nn.Module, layers: list[nn.Module], pooling: str) -> None:
        super().__init__(layers, pooling)
        self.encoding = encoding

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        return super().forward(z + self.encoding(coords).to(z.dtype), coords, mask, section)

    def account(self, z: Tensor, coords: Tensor, section: Tensor | None) -> AttentionLayers:
        return super().account(z + self.encoding(coords).to(z.dtype), coords, section)


class SAAxial(AttentionModel):
    """MIL with SA + axial PE: eqs. (self_att), (self_att_compatibility) on x_i + p(coords_i), then pooling.

    The encoding has sines and cosines of x and of y in turn, see dasmil.nn.position.AxialEncoding.
    position_scale: the length, in the unit of the coordinates, that is one radian of the fastest wave; 1 (a pixel) is
    what the published program used. Other options as in sa.
    """

    name = "sa-axial"
    paper = "Ramachandran et al. 2019, Stand-alone self-attention in vision models"
    position = "absolute"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "mnist-collage": {"hidden": 15},
        "camelyon16": {"hidden": 10, "out_features": 16},
    }
    encoding: ClassVar[type[AxialEncoding] | type[FourierEncoding]] = AxialEncoding

    def __init__(
        self,
        *,
        hidden: Size = 15,
        out_features: Size | None = None,
        heads: Count = 1,
        pooling: Pooling = "max",
        dropout: Probability = 0.1,
        position_scale: Length = 1.0,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        out = self.encoded if out_features is None else out_features
        encoding = self.encoding(self.encoded, position_scale)
        layer = DistanceAwareAttention(self.encoded, out, hidden=hidden, heads=heads, embeddings="", dropout=dropout)
        self.aggregator = PositionedAggregator(encoding, [layer], pooling)
        self.classifier = self.make_classifier(out)


class SAFourier(SAAxial):
    """MIL with SA + Fourier PE: as sa-axial, with the learnable encoding dasmil.nn.position.FourierEncoding."""

    name = "sa-fourier"
    paper = "Li et al. 2021, Learnable Fourier features for multi-dimensional spatial positional encoding"
    encoding: ClassVar[type[AxialEncoding] | type[FourierEncoding]] = FourierEncoding

"""MambaMIL: state-space layers over the instances in their order, then attention pooling."""

from __future__ import annotations

import math
from typing import Literal, Unpack

from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.models.ab_mil import AttentionPooling
from dasmil.models.account import ModelAccount
from dasmil.models.bag_by_bag import BagByBag
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Probability, Size
from dasmil.nn import Linear
from dasmil.nn.draws import dropout
from dasmil.nn.nystrom import LayerNorm
from dasmil.nn.recompute import again_in_backward
from dasmil.nn.scan import SelectiveScan

HIDDEN = 128
"""Units of the attention that pools."""
Second = Literal["none", "reversed", "reordered"]


class Mixer(nn.Module):
    """[a | z] = W_in x; one selective scan in the order given, perhaps one in another order; W_out of their sum."""

    def __init__(self, features: int, second: str, rate: int) -> None:
        super().__init__()
        self.enter = Linear(features, 4 * features, bias=False)
        scans = 1 if second == "none" else 2
        self.scans = nn.ModuleList(SelectiveScan(2 * features, math.ceil(features / 16)) for _ in range(scans))
        self.leave = Linear(2 * features, features, bias=False)
        self.second, self.rate = second, rate

    def forward(self, x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        both = self.enter(x)
        y = self.scans[0](*both.chunk(2, -1), grid)
        if self.second == "reversed":
            y = y + self.scans[1](*both.flip(0).chunk(2, -1)).flip(0)
        elif self.second == "reordered":
            y = y + self._reordered(both)
        return self.leave(y)

    def _reordered(self, both: Tensor) -> Tensor:
        """Every rate-th position, then every rate-th from the second on, and so on; zeros fill up the end."""
        n, rate = len(both), self.rate
        filled = F.pad(both, (0, 0, 0, -n % rate))
        order = filled.unflatten(0, (-1, rate)).transpose(0, 1).flatten(0, 1)
        y = self.scans[1](*order.chunk(2, -1))
        return y.unflatten(0, (rate, -1)).transpose(0, 1).flatten(0, 1)[:n]


class MambaLayer(nn.Module):
    """x + Mixer(LN(x))."""

    def __init__(self, features: int, second: str, rate: int) -> None:
        super().__init__()
        self.norm, self.mixer = LayerNorm(features), Mixer(features, second, rate)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixer(self.norm(x))


class MambaAggregator(BagByBag):
    """x = GELU(W z + b), the layers, LN; attention pooling [features]."""

    def __init__(self, in_features: int, features: int, layers: int, dropout: float, second: str, rate: int) -> None:
        super().__init__()
        self.enter = Linear(in_features, features)
        self.layers = nn.ModuleList(MambaLayer(features, second, rate) for _ in range(layers))
        self.norm = LayerNorm(features)
        self.pooling = AttentionPooling(features, HIDDEN, gated=False)
        self.dropout = dropout

    def tokens(self, z: Tensor) -> Tensor:
        x = dropout(F.gelu(self.enter(z)), self.dropout, self.training)
        for layer in self.layers:
            x = again_in_backward(layer, x)
        return self.norm(x)

    def bag(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Aggregated:
        return self.pooling(self.tokens(z), coords, None, section)

    def account(self, z: Tensor, coords: Tensor, section: Tensor | None) -> ModelAccount:
        return self.pooling.account(self.tokens(z), coords, section)


def begin_linear(*parts: nn.Module) -> None:
    """Xavier's normal weights and zero biases in linear layers only, also of the step sizes, as published."""
    for layer in (module for part in parts for module in part.modules() if isinstance(module, Linear)):
        nn.init.xavier_normal_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


class MambaMIL(MILModel):
    """MambaMIL: selective state spaces (Mamba) over the instances in the order of the file, then attention pooling.

    second: the other order in which each layer scans: "none" (Mamba), "reversed" (BiMamba) or "reordered" (SRMamba, the
    paper's own: every ``rate``-th instance, the published scripts take 5). Another order of the instances gives another
    logit; coordinates are not used. Step sizes start at softplus(0), as in the program, which sets their bias to 0.
    """

    name = "mamba-mil"
    paper = "Yang et al. 2024, MambaMIL: enhancing long sequence modeling with sequence reordering"
    permutation_invariant = False
    idle_parameters = ("aggregator.pooling.weight.bias",)

    def __init__(
        self,
        *,
        features: Size = 512,
        layers: Count = 2,
        second: Second = "reordered",
        rate: Count = 10,
        dropout: Probability = 0.0,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        self.aggregator = MambaAggregator(self.encoded, features, layers, dropout, second, rate)
        self.classifier = self.make_classifier(features)
        begin_linear(self.aggregator, self.classifier)

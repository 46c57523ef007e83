"""What a model can say exactly about its logit: a sum over instances, or over pairs of them, once weights are held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from dasmil.nn import pool


@dataclass(frozen=True, eq=False)
class PlainPooling:
    """Rows x [n, f], one an instance, pooled as they are ("sum": what each instance adds)."""

    x: Tensor
    pooling: str

    def pooled(self) -> Tensor:
        return pool(self.x, None, self.pooling)


@dataclass(frozen=True, eq=False)
class WeightedPooling:
    """Encoded instances x [n, f], summed with attention weights [n]."""

    x: Tensor
    weights: Tensor

    def pooled(self) -> Tensor:
        return self.weights @ self.x


@dataclass(frozen=True, eq=False)
class AttentionLayers:
    """Self-attention layers, one on the other, over x [n, f], then a pooling of what the last one gives."""

    x: Tensor
    layers: list[nn.Module]
    pooling: str


ModelAccount = PlainPooling | WeightedPooling | AttentionLayers


@runtime_checkable
class Additive(Protocol):
    """An aggregator whose embedding is a sum over instances, once its weights are held."""

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each of the encoded instances z [n, f] of one bag adds to the embedding [n, o]."""
        ...


@runtime_checkable
class Accountable(Protocol):
    """An aggregator that says itself how it splits."""

    def account(self, z: Tensor, coords: Tensor, section: Tensor | None) -> ModelAccount:
        """How it makes the embedding of one bag of encoded instances z [n, f]."""
        ...

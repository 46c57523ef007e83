"""Reads a model's aggregator: which parts of it are linear once the attention weights are held."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from dasmil.attribution.rows import PairAttention
from dasmil.models.ab_mil import AttentionPooling
from dasmil.models.base import MILModel
from dasmil.models.pooling import PoolAggregator
from dasmil.models.sa import SAAggregator
from dasmil.models.sa_position import PositionedAggregator
from dasmil.nn import DistanceAwareAttention, pool
from dasmil.nn.discrete import DiscreteDistanceAttention

AttentionModule = DistanceAwareAttention | DiscreteDistanceAttention


@dataclass(eq=False)
class Stack:
    """Self-attention layers, one on the other, then a pooling; value_weights[l]: W^V of layer l [out, in]."""

    layers: list[PairAttention]
    value_weights: list[Tensor]
    modules: list[AttentionModule]
    last_input: Tensor
    pooling: str
    _output: Tensor | None = field(default=None, repr=False)

    def output(self) -> Tensor:
        """What the last layer gives to the pooling [n, f]; kept, because it needs all pairs."""
        if self._output is None:
            last = self.layers[-1]
            self._output = self.modules[-1].forward(self.last_input, last.coords, None, last.section)
        return self._output

    def pooled(self) -> Tensor:
        return pool(self.output(), None, self.pooling)


@dataclass(frozen=True, eq=False)
class PlainPooling:
    """Encoded instances x [n, f], pooled as they are."""

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


def read_structure(
    model: MILModel, features: Tensor, coords: Tensor, section: Tensor | None
) -> Stack | PlainPooling | WeightedPooling | None:
    """The model's aggregator for one bag, in a form that splits exactly; None where no exact split is known."""
    aggregator = model.aggregator
    x = model.encoder(features)
    if isinstance(aggregator, PoolAggregator):
        return PlainPooling(x, aggregator.kind)
    if isinstance(aggregator, AttentionPooling):
        weights = aggregator(x, coords, None, section).instance_scores
        assert weights is not None
        return WeightedPooling(x, weights)
    if type(aggregator) is PositionedAggregator:
        return _read_stack(aggregator, x + aggregator.encoding(coords).to(x.dtype), coords, section)
    if type(aggregator) is SAAggregator:
        return _read_stack(aggregator, x, coords, section)
    parts = getattr(aggregator, "parts", None)
    if callable(parts):  # what each instance adds to the embedding
        added = parts(x, coords, section)
        assert isinstance(added, Tensor)
        return PlainPooling(added, "sum")
    return None


def _read_stack(aggregator: SAAggregator, x: Tensor, coords: Tensor, section: Tensor | None) -> Stack | None:
    modules = [layer for layer in aggregator.layers if isinstance(layer, AttentionModule)]
    if len(modules) != len(aggregator.layers):
        return None
    layers = []
    for number, module in enumerate(modules):
        layers.append(_pair_attention(module, x, coords, section))
        if number + 1 < len(modules):
            x = module.forward(x, coords, None, section)
    return Stack(layers, [module.value.weight for module in modules], modules, x, aggregator.pooling)


def _pair_attention(module: AttentionModule, x: Tensor, coords: Tensor, section: Tensor | None) -> PairAttention:
    query, key, value = module.project(x)
    more = {}
    if isinstance(module, DistanceAwareAttention):
        query, key = module.turned(query, key, coords, section)
        more = {"bias": module.bias_terms(), "radius": module.relative_radius, "distance_scale": module.distance_scale}
    root = 2**0.5 if isinstance(module, DiscreteDistanceAttention) and module.qk_twice else 1.0
    query, key = root * query, root * key  # so that q.k counts twice, and q.b and b.k once with b / root
    attention = PairAttention(query, key, value, coords, scale=module.scale, section=section, **more)
    embeddings = {name: getattr(module, name) for name in ("key_embed", "query_embed", "value_embed")}
    for name in ("key_embed", "query_embed"):
        if embeddings[name] is not None:
            embeddings[name] = embeddings[name] / root
    if all(embedding is None for embedding in embeddings.values()):
        return attention
    attention = replace(attention, distance_scale=module.distance_scale, self_pair=module.self_pair, **embeddings)
    if isinstance(module, DiscreteDistanceAttention):
        last = module.bins - 1
        return replace(attention, bin_of=lambda delta: (delta * last).round().clamp(max=last).long())
    return replace(attention, theta=module.theta, beta=module.beta, phi=module.phi, product_term=module.product_term)

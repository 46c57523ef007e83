"""Reads a model's aggregator: which parts of it are linear once the attention weights are held."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from dasmil.attribution.contributions import pooling_weights
from dasmil.attribution.rows import PairAttention
from dasmil.models.account import AttentionLayers, PlainPooling, WeightedPooling
from dasmil.models.base import MILModel
from dasmil.nn import DistanceAwareAttention, pool
from dasmil.nn.discrete import DiscreteDistanceAttention
from dasmil.nn.evidence import PairEvidence

AttentionModule = DistanceAwareAttention | DiscreteDistanceAttention


@dataclass(eq=False)
class Stack:
    """Self-attention layers, one on the other, then a pooling; value_weights[l]: W^V of layer l [out, in].

    evidence: a row is no weighted mean of values but the weight that all its pairs have together, each pair its share.
    """

    layers: list[PairAttention]
    value_weights: list[Tensor]
    modules: list[AttentionModule]
    last_input: Tensor
    pooling: str
    evidence: bool = False
    _output: Tensor | None = field(default=None, repr=False)

    def output(self) -> Tensor:
        """What the last layer gives to the pooling [n, f]; kept, because it needs all pairs."""
        if self._output is None:
            last = self.layers[-1]
            self._output = self.modules[-1].forward(self.last_input, last.coords, None, last.section)
        return self._output

    def row_weights(self, w: Tensor) -> Tensor:
        """The weight [n, f] of every row in w . pooled(), times what its values of 1 must be scaled by."""
        found = pooling_weights(self.output(), w, self.pooling)
        return found * self.output() if self.evidence else found

    def pooled(self) -> Tensor:
        return pool(self.output(), None, self.pooling)


def read_structure(
    model: MILModel, features: Tensor, coords: Tensor, section: Tensor | None
) -> Stack | PlainPooling | WeightedPooling | None:
    """The model's own account of one bag, with its pairs of instances; None where no exact split is known."""
    account = model.account(features, coords, section)
    return _read_stack(account, coords, section) if isinstance(account, AttentionLayers) else account


def _read_stack(account: AttentionLayers, coords: Tensor, section: Tensor | None) -> Stack | None:
    modules = [layer for layer in account.layers if isinstance(layer, AttentionModule)]
    if len(modules) != len(account.layers):
        return None
    layers, x = [], account.x
    for number, module in enumerate(modules):
        layers.append(_pair_attention(module, x, coords, section))
        if number + 1 < len(modules):
            x = module.forward(x, coords, None, section)
    evidence = isinstance(modules[0], PairEvidence)
    weights = [] if evidence else [module.value.weight for module in modules]
    return Stack(layers, weights, modules, x, account.pooling, evidence)


def _pair_attention(module: AttentionModule, x: Tensor, coords: Tensor, section: Tensor | None) -> PairAttention:
    query, key, value = module.project(x)
    more = {}
    if isinstance(module, DistanceAwareAttention):
        query, key = module.turned(query, key, coords, section)
        more = {
            "bias": module.bias_terms(), "radius": module.relative_radius, "distance_scale": module.distance_scale,
            "rotary": module.wavelengths is not None,
        }  # fmt: skip
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

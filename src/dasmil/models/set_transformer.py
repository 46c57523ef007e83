"""The Set Transformer, with full or induced self-attention."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Probability, Size
from dasmil.nn import Linear
from dasmil.nn.draws import dropout
from dasmil.nn.linear import per_run


class MAB(nn.Module):
    """MAB(X, Y) = H + ReLU(H W^O + b), H = Q + softmax(Q K^T / sqrt(d)) V: X [..., m, a], Y [..., n, b] -> [..., m, d].

    Q comes from X, K and V from Y. One head, no layer normalisation, as in the program behind the paper's table.
    """

    def __init__(self, x_features: int, y_features: int, hidden: int) -> None:
        super().__init__()
        self.query = Linear(x_features, hidden)
        self.key = Linear(y_features, hidden)
        self.value = Linear(y_features, hidden)
        self.output = Linear(hidden, hidden)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
        query, key, value = self.query(x), self.key(y), self.value(y)
        bias = None if mask is None else mask.unsqueeze(-2)
        return self._feed(query + F.scaled_dot_product_attention(query, key, value, bias))

    def with_weights(self, x: Tensor, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The same, and the attention weights [..., m, n]."""
        query, key, value = self.query(x), self.key(y), self.value(y)
        e = query @ key.mT / math.sqrt(query.shape[-1])
        if mask is not None:
            e = e.masked_fill(~mask.unsqueeze(-2), float("-inf"))
        weights = e.softmax(-1)
        return self._feed(query + weights @ value), weights

    def _feed(self, h: Tensor) -> Tensor:
        return h + F.relu(self.output(h))


class SAB(nn.Module):
    """SAB(X) = MAB(X, X): [..., n, f] -> [..., n, hidden]."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.mab = MAB(features, features, hidden)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.mab(x, x, mask)


class LearnedPoints(nn.Module):
    """Vectors [count, features] that take the place of a set, for every bag of the batch."""

    def __init__(self, count: int, features: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(count, features))
        nn.init.xavier_uniform_(self.vectors)

    def forward(self, batch: torch.Size) -> Tensor:
        vectors = per_run(self.vectors, 2, batch)
        return vectors.expand(*batch, *vectors.shape[-2:])


class ISAB(nn.Module):
    """ISAB(X) = MAB(X, MAB(I, X)) with learned inducing points I: [..., n, f] -> [..., n, hidden]."""

    def __init__(self, features: int, hidden: int, inducing_points: int) -> None:
        super().__init__()
        self.inducing = LearnedPoints(inducing_points, hidden)
        self.gather = MAB(hidden, features, hidden)
        self.spread = MAB(features, hidden, hidden)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.spread(x, self.gather(self.inducing(x.shape[:-2]), x, mask), None)


class SetAggregator(nn.Module):
    """Two blocks, dropout, PMA with one seed vector S (MAB(S, X)), dropout: z [..., n, f] -> [..., hidden].

    The instance scores are the attention of the seed.
    """

    def __init__(self, blocks: list[nn.Module], hidden: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.seed = LearnedPoints(1, hidden)
        self.pooling = MAB(hidden, hidden, hidden)
        self.dropout = dropout

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        for block in self.blocks:
            z = block(z, mask)
        z = dropout(z, self.dropout, self.training)
        pooled, weights = self.pooling.with_weights(self.seed(z.shape[:-2]), z, mask)
        pooled = dropout(pooled.squeeze(-2), self.dropout, self.training)
        return Aggregated(pooled, instance_scores=weights.squeeze(-2))


class SetTransformer(MILModel):
    """MIL with Set Transformer: SAB, SAB, PMA with one seed, linear classifier.

    Implements eqs. (6) to (12) of Lee et al. (2019) with one head; the classifier is the last layer of their decoder.
    """

    name = "set-transformer"
    paper = "Lee et al. 2019, Set Transformer"
    idle_parameters = ("aggregator.*key.bias",)  # the same for all keys, so it cancels in the softmax
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {"hidden": 10}}

    def __init__(self, *, hidden: Size = 10, dropout: Probability = 0.5, **common: Unpack[CommonOptions]) -> None:
        super().__init__(**common)
        self.aggregator = SetAggregator([SAB(self.encoded, hidden), SAB(hidden, hidden)], hidden, dropout)
        self.classifier = self.make_classifier(hidden)


class ISetTransformer(MILModel):
    """MIL with iSet Transformer: as set-transformer, with ISAB blocks, so that the cost grows with n and not n^2."""

    name = "iset-transformer"
    paper = "Lee et al. 2019, Set Transformer"
    idle_parameters = ("aggregator.*key.bias",)  # the same for all keys, so it cancels in the softmax
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {"hidden": 15}}

    def __init__(
        self,
        *,
        hidden: Size = 15,
        inducing_points: Size = 32,
        dropout: Probability = 0.5,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        blocks: list[nn.Module] = [ISAB(size, hidden, inducing_points) for size in (self.encoded, hidden)]
        self.aggregator = SetAggregator(blocks, hidden, dropout)
        self.classifier = self.make_classifier(hidden)

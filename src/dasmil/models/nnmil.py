"""nnMIL's aggregator: gated attention that reads random columns of the features in training."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Unpack

import torch
from torch import Tensor, nn

from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Probability, Size
from dasmil.nn import Linear
from dasmil.nn.draws import dropout, some
from dasmil.nn.linear import linear

SEED = 42
"""Of the order of the columns at test time, as published."""


@functools.cache
def column_order(features: int) -> tuple[int, ...]:
    """The fixed order of the columns that windows at test time are cut from; the same on every device."""
    with torch.device("cpu"):
        return tuple(torch.randperm(features, generator=torch.Generator().manual_seed(SEED)).tolist())


class NnMILAggregator(nn.Module):
    """z = sum_i a_i x_i, a = softmax_i(w . (tanh(V x_i + v) * sigmoid(U x_i + u)) + w_0), V and U on some columns.

    In training they see ``hidden`` columns, drawn anew for every step; at test time windows of as many columns, whose
    attentions are averaged (and so, as pooling and classifier are linear, their logits). select=False: all columns, no
    gate.
    """

    def __init__(self, features: int, hidden: int, windows: int, dropout: float, select: bool) -> None:
        super().__init__()
        self.tanh = Linear(features, hidden)
        self.gate = Linear(features, hidden) if select else None
        self.weight = Linear(hidden, 1)
        self.features, self.hidden, self.windows, self.dropout = features, hidden, windows, dropout

    def columns(self) -> Iterator[Tensor | None]:
        """The columns of every window [hidden] (None: all)."""
        if self.gate is None or self.hidden >= self.features:
            yield None
        elif self.training:
            yield some(self.features, self.hidden)
        else:
            last, order = self.features - self.hidden, torch.tensor(column_order(self.features))
            starts = list(range(0, last + 1, max(1, self.hidden // self.windows)))
            for start in starts + [last] * (starts[-1] < last):
                yield order[start : start + self.hidden]

    def attention(self, z: Tensor, mask: Tensor | None, columns: Tensor | None) -> Tensor:
        """Weights [..., n] of the instances when these columns are seen."""
        kept = None
        if columns is not None:
            kept = torch.zeros(*columns.shape[:-1], 1, self.features, dtype=z.dtype)
            kept = kept.scatter_(-1, columns.unsqueeze(-2), 1.0).to(z.device)

        def seen(layer: nn.Linear) -> Tensor:
            return linear(z, layer.weight if kept is None else layer.weight * kept, layer.bias)

        h = dropout(seen(self.tanh).tanh(), self.dropout, self.training)
        if self.gate is not None:
            h = h * dropout(seen(self.gate).sigmoid(), self.dropout, self.training)
        scores = self.weight(h).squeeze(-1)
        return (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).softmax(-1)

    def each(self, z: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of every window [windows, ..., n]."""
        return torch.stack([self.attention(z, mask, columns) for columns in self.columns()])

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        attention = self.each(z, mask).mean(0)
        return Aggregated((attention.unsqueeze(-2) @ z).squeeze(-2), instance_scores=attention)

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each instance of one bag adds to the embedding [n, f]."""
        return self.each(z, None).mean(0).unsqueeze(-1) * z


class NnMIL(MILModel):
    """nnMIL: gated attention on the raw features; a random set of columns decides in training, all windows at test.

    hidden: units, and columns seen at once; max(256, features / 4) where none is given. windows: the step between
    windows is hidden / windows. Its training recipe is ``--recipe nnmil``, for any model.
    Departs from the program: the order of the columns is the same on every device (there CPU and GPU predict
    differently), and risks of survival are averaged like logits (there log mean exp).
    """

    name = "nnmil"
    paper = "Luo et al. 2025, nnMIL: a generalizable multiple instance learning framework for computational pathology"
    idle_parameters = ("aggregator.weight.bias",)

    def __init__(
        self,
        *,
        hidden: Size | None = None,
        windows: Count = 4,
        dropout: Probability = 0.25,
        select: bool = True,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        size = max(256, self.encoded // 4) if hidden is None else hidden
        self.aggregator = NnMILAggregator(self.encoded, size, windows, dropout, select)
        self.classifier = self.make_classifier(self.encoded)

    def window_logits(self, features: Tensor, coords: Tensor) -> Tensor:
        """Logits of one bag [windows, logits] that each window of columns gives; their spread is an uncertainty."""
        assert isinstance(self.aggregator, NnMILAggregator)
        z = self.encoder(features)
        return self.classifier(self.aggregator.each(z, None) @ z)

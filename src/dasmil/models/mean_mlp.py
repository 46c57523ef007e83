"""Mean pooling and a multilayer perceptron: the simple model that every other one has to beat."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Probability, Size
from dasmil.nn import Linear, pool
from dasmil.nn.draws import dropout

MLPPooling = Literal["mean", "max", "max-mean"]


class MLPAggregator(nn.Module):
    """ReLU(W_1 p + b_1) of the pooled instances p: their mean, their maximum, or both side by side [..., hidden]."""

    def __init__(self, features: int, hidden: int, pooling: str, dropout: float) -> None:
        super().__init__()
        self.kinds = pooling.split("-")
        self.hidden = Linear(len(self.kinds) * features, hidden)
        self.dropout = dropout

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        pooled = torch.cat([pool(z, mask, kind) for kind in self.kinds], -1)
        return Aggregated(dropout(self.hidden(pooled).relu(), self.dropout, self.training))

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each instance of one bag adds to the hidden layer [n, hidden], its active units held.

        To a maximum only the instance that has it adds.
        """
        shares = {"mean": lambda: z / len(z), "max": lambda: z * _first_maximum(z)}
        each = torch.cat([shares[kind]() for kind in self.kinds], -1)
        found = self.hidden(each) - self.hidden.bias * (1 - 1 / len(z))
        return found * (found.sum(0) > 0)


def _first_maximum(z: Tensor) -> Tensor:
    """1 where an instance has the largest value of a feature, the first one where several have it."""
    return torch.zeros_like(z).scatter_(0, z.max(0, keepdim=True).indices, 1.0)


class MeanMLP(MILModel):
    """Mean + MLP: logit = W_2 ReLU(W_1 p + b_1) + b_2, p the mean of the encoded instances.

    After the abstract of Li et al. (2025), who report that a mean and an MLP on features of foundation models do as
    well as attention. No program of theirs was found: width, activation and dropout are ours.
    pooling: "mean", "max" (of each feature), or "max-mean", both side by side.
    """

    name = "mean-mlp"
    paper = "Li et al. 2025, Can we simplify slide-level fine-tuning of pathology foundation models?"

    def __init__(
        self,
        *,
        hidden: Size = 512,
        pooling: MLPPooling = "mean",
        dropout: Probability = 0.0,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        self.aggregator = MLPAggregator(self.encoded, hidden, pooling, dropout)
        self.classifier = self.make_classifier(hidden)

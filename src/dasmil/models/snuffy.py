"""Snuffy: a transformer in which all instances report to a few chosen ones."""

from __future__ import annotations

import math
from typing import Annotated, Unpack

import torch
from torch import Tensor, nn

from dasmil.models.acmil import shared_heads
from dasmil.models.bag_by_bag import BagByBag
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Probability, Range
from dasmil.nn import Linear
from dasmil.nn.attention import join
from dasmil.nn.draws import dropout, permutation
from dasmil.nn.initial import xavier_normal
from dasmil.nn.nystrom import LayerNorm
from dasmil.nn.recompute import again_in_backward

Chosen = Annotated[int, Range(1, 4096)]
HEADS = 4
ROWS = 4096


class ChosenAttention(nn.Module):
    """Chosen tokens get Lin(sum_i P_ij v_i), P_i = softmax over the chosen j of q_i . k_j / sqrt(d).

    Queries and values are of LN(x), keys of x itself, as published. The sum over i is not normalised.
    """

    def __init__(self, features: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (Linear(features, features) for _ in range(4))
        self.norm = LayerNorm(features)
        self.heads, self.dropout = heads, dropout

    def weights(self, x: Tensor, chosen: Tensor) -> Tensor:
        """P [heads, n, chosen]."""
        q, k = self._split(self.query(self.norm(x))), self._split(self.key(x[chosen]))
        return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(0, 1)

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        attention = dropout(self.weights(x, chosen), self.dropout, self.training)
        heard = self.out(join(attention.mT @ self._split(self.value(self.norm(x)))))
        return x.index_add(0, chosen, heard)


class MLP(nn.Module):
    """x + W_2 ReLU(W_1 LN(x)) with four times the features inside."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = LayerNorm(features)
        self.up, self.down = Linear(features, 4 * features), Linear(4 * features, features)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class SnuffyLayer(nn.Module):
    """The attention of the chosen, then an MLP for all, some rows at a time."""

    def __init__(self, features: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.mlp = ChosenAttention(features, heads, dropout), MLP(features)

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        x = again_in_backward(self.attention, x, chosen)
        return torch.cat([again_in_backward(self.mlp, rows) for rows in x.split(ROWS)])


class SnuffyAggregator(BagByBag):
    """c_i = w . z_i + b chooses; the layers; the mean over all instances of LN(x) [features]."""

    def __init__(
        self, features: int, heads: int, layers: int, logits: int, chosen: int, share: float, dropout: float
    ) -> None:
        super().__init__()
        self.instances = Linear(features, logits)
        self.layers = nn.ModuleList(SnuffyLayer(features, heads, dropout) for _ in range(layers))
        self.norm = LayerNorm(features)
        self.most, self.share = chosen, share

    def chosen(self, logits: Tensor) -> Tensor:
        """Numbers of the instances with the largest logit; in training a share of them is drawn from the others."""
        n = len(logits)
        order = logits.detach().amax(-1).argsort(descending=True, stable=True)
        drawn = int(self.most * self.share) if self.training and n > self.most else 0
        best, others = order[: self.most - drawn], order[self.most - drawn :]
        return torch.cat([best, others[permutation(len(others))[:drawn].to(others.device)]]) if drawn else best

    def _tokens(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """What is averaged [n, features], and the instance logits [n, logits]."""
        logits = self.instances(z)
        x, chosen = z, self.chosen(logits)
        for layer in self.layers:
            x = layer(x, chosen)
        return self.norm(x), logits

    def bag(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Aggregated:
        x, logits = self._tokens(z)
        most = logits.amax(0)
        scores = logits.squeeze(-1) if logits.shape[-1] == 1 else logits.amax(-1)
        return Aggregated(
            x.mean(0),
            instance_scores=scores.sigmoid(),
            side_logits=most if len(most) == 1 else most.unsqueeze(0),
            bag_weight=0.5,
            side_weight=0.5,
        )

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each token of one bag adds to the embedding [n, features]; chosen ones have heard all others by then."""
        return self._tokens(z)[0] / len(z)


class Snuffy(MILModel):
    """Snuffy: the ``chosen`` instances with the largest logit of their own attend to all; mean pooling.

    Half of the loss is on the largest instance logit, half on the bag (Jafarinia et al. 2024); the model's logit is
    that of the bag, the published prediction the mean of both probabilities. share: of the chosen that are drawn from
    the other instances in a training step. Departs from the program: nothing is drawn at test time, so that a
    prediction is the same every time; more than two classes have one logit each, and the largest of them chooses.
    """

    name = "snuffy"
    paper = "Jafarinia et al. 2024, Snuffy: efficient whole slide image classifier"
    idle_parameters = ("aggregator.layers.*.attention.key.bias",)

    def __init__(
        self,
        *,
        heads: Count | None = None,
        layers: Count = 1,
        chosen: Chosen = 200,
        share: Probability = 0.0,
        dropout: Probability = 0.1,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        shared = shared_heads(self.encoded, heads, HEADS)
        self.aggregator = SnuffyAggregator(self.encoded, shared, layers, self.n_logits, chosen, share, dropout)
        self.classifier = self.make_classifier(self.encoded)
        xavier_normal(self.aggregator, self.classifier)

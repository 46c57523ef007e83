"""ABMILX: multi-head AB-MIL whose scores are smoothed over instances with like features."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.models.account import ModelAccount
from dasmil.models.acmil import shared_heads
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Probability, Size
from dasmil.nn import Linear
from dasmil.nn.draws import dropout
from dasmil.nn.initial import xavier_normal
from dasmil.nn.linear import per_run
from dasmil.nn.nystrom import LayerNorm
from dasmil.ops import das_attention

ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu}
Activation = Literal["gelu", "relu"]


class ScoreRefinement(nn.Module):
    """p_hi = sum_j softmax_j(q_i . k_j / sqrt(d)) v s_hj, [q | k] = W LN(h_i), v one learned number."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.qk = Linear(features, 2 * features, bias=False)
        self.value = nn.Parameter(torch.empty(1, 1))
        nn.init.xavier_normal_(self.value)
        self.norm = LayerNorm(features)


class ABMILXAggregator(nn.Module):
    """Heads of h_i = act(W z_i + b) with attention softmax_i(s_h + p_h), joined and projected [..., features]."""

    def __init__(
        self, in_features: int, features: int, heads: int, activation: str, refine: bool, shared: bool, norm: bool,
        mlp: bool, bias: bool, dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        inside = features // heads if shared else features
        self.norm_in = LayerNorm(in_features, bias=bias) if norm else None
        self.enter = Linear(in_features, features, bias=bias)
        self.score1 = Linear(inside, inside, bias=bias)
        self.score2 = Linear(inside, 1 if shared else heads, bias=bias)
        self.refine = ScoreRefinement(inside) if refine else None
        self.out = Linear(features, features, bias=bias)
        self.up, self.down = (Linear(features, 4 * features), Linear(4 * features, features)) if mlp else (None, None)
        self.norm_mlp = LayerNorm(features) if mlp and not norm else None
        self.norm_out = LayerNorm(features, bias=bias) if norm else None
        self.heads, self.shared, self.activation, self.dropout = heads, shared, activation, dropout

    def attend(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """h [..., heads, n, d] and attention [..., heads, n]."""
        x = z if self.norm_in is None else self.norm_in(z)
        h = dropout(ACTIVATIONS[self.activation](self.enter(x)), self.dropout, self.training)
        by_head = self._split(h)
        own = by_head if self.shared else h
        scores = self.score2(F.gelu(self.score1(own)))
        scores = scores if self.shared else scores.mT.unsqueeze(-1)  # [..., heads, n, 1]
        if self.refine is not None:
            q, k = self.refine.qk(self.refine.norm(own)).chunk(2, -1)
            if not self.shared:
                q, k = self._split(q), self._split(k)
            value = scores * per_run(self.refine.value, 2, z.shape[:-2]).unsqueeze(-3)
            nowhere = z.new_zeros(*z.shape[:-1], 2)
            p = das_attention(q, k, value, nowhere, scale=q.shape[-1] ** -0.5, mask=mask)
            assert isinstance(p, Tensor)
            scores = scores + p
        scores = scores.squeeze(-1)
        scores = scores if mask is None else scores.masked_fill(~mask.unsqueeze(-2), float("-inf"))
        return by_head, scores.softmax(-1)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

    @property
    def additive(self) -> bool:
        return self.up is None and self.norm_out is None

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        h, attention = self.attend(z, mask)
        found = self.out((attention.unsqueeze(-2) @ h).flatten(-3))
        rows = found.unsqueeze(-2)
        if self.up is not None and self.down is not None:
            inner = rows if self.norm_mlp is None else self.norm_mlp(rows)
            rows = rows + self.down(F.gelu(self.up(inner)))
        if self.norm_out is not None:
            rows = self.norm_out(rows)
        return Aggregated(rows.squeeze(-2), instance_scores=attention.mean(-2))

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each instance of one bag adds to the embedding [n, features], without norm and MLP."""
        h, attention = self.attend(z, None)
        each = self.out((attention.unsqueeze(-1) * h).transpose(-2, -3).flatten(-2))
        return each if self.out.bias is None else each - self.out.bias * (1 - 1 / len(z))


class ABMILX(MILModel):
    """ABMILX: AB-MIL in ``heads`` slices of the features, scores refined by attention among the instances.

    Implements the multi-head local attention and the attention plus propagation of Tang et al. (2025); the network of
    the scores is the same for all heads (shared=False: one on all features, with a score for each head). refine=False
    is the default of the program's options, the class and the paper have it. norm, mlp, bias=False: its settings for
    end-to-end training. Time grows with n^2, memory with n.
    """

    name = "abmilx"
    paper = "Tang et al. 2025, Revisiting end-to-end learning with slide-level supervision in computational pathology"
    idle_parameters = ("aggregator.score2.bias",)

    def __init__(
        self,
        *,
        features: Size = 512,
        heads: Count = 8,
        activation: Activation = "gelu",
        refine: bool = True,
        shared: bool = True,
        norm: bool = False,
        mlp: bool = False,
        bias: bool = True,
        dropout: Probability = 0.25,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        shared_heads(features, heads, heads)
        self.aggregator = ABMILXAggregator(
            self.encoded, features, heads, activation, refine, shared, norm, mlp, bias, dropout
        )
        self.classifier = self.make_classifier(features)
        if not bias:
            self.classifier.register_parameter("bias", None)
        xavier_normal(self.aggregator, self.classifier)

    def account(self, features: Tensor, coords: Tensor, section: Tensor | None) -> ModelAccount | None:
        assert isinstance(self.aggregator, ABMILXAggregator)
        return super().account(features, coords, section) if self.aggregator.additive else None

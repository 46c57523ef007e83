"""ACMIL: several attention branches that must differ, whose strongest instances are hidden at random."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Unpack

import torch
from torch import Tensor, nn

from dasmil.errors import InputError
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Probability, Range, Size
from dasmil.nn import Linear
from dasmil.nn.attention import join
from dasmil.nn.draws import dropout, uniform
from dasmil.nn.gated import GatedBranches
from dasmil.nn.initial import torch_default
from dasmil.nn.linear import per_run
from dasmil.nn.multihead import MultiHead
from dasmil.nn.nystrom import LayerNorm

Attention = Literal["gated", "heads"]
Hidden = Annotated[int, Range(0, 256)]
HEADS = 8


def hide_strongest(scores: Tensor, among: int, share: float) -> Tensor:
    """Scores [..., n] of which a random share of the ``among`` largest becomes -inf: floor(share x T) of T."""
    top = min(among, scores.shape[-1])
    count = (scores > float("-inf")).sum(-1, keepdim=True).clamp(max=top)
    order = scores.detach().topk(top, -1).indices
    drawn = uniform(order.shape, scores)
    drawn = drawn.masked_fill(torch.arange(top, device=scores.device) >= count, float("inf"))
    chosen = drawn.argsort(-1).argsort(-1) < (count.double() * share).floor()
    return scores.masked_fill(torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, chosen), float("-inf"))


def likeness(attention: Tensor) -> Tensor:
    """Mean cosine of all pairs of branches: attention [..., branches, n] -> [...]."""
    unit = attention / attention.norm(dim=-1, keepdim=True)
    first, second = torch.triu_indices(attention.shape[-2], attention.shape[-2], 1).to(attention.device)
    return (unit @ unit.mT)[..., first, second].mean(-1)


class BranchLogits(nn.Module):
    """b_k = C_k m_k + c_k, a classifier for each branch: [..., branches, features] -> [..., branches(, logits)]."""

    def __init__(self, features: int, branches: int, logits: int) -> None:
        super().__init__()
        self.rows = Linear(features, branches * logits)
        self.shape = (branches, logits)

    def forward(self, m: Tensor) -> Tensor:
        batch = m.shape[:-2]
        weight = per_run(self.rows.weight, 2, batch).unflatten(-2, self.shape)
        found = (weight @ m.unsqueeze(-1)).squeeze(-1) + per_run(self.rows.bias, 1, batch).unflatten(-1, self.shape)
        return found.squeeze(-1) if self.shape[1] == 1 else found


class ACMILAggregator(GatedBranches):
    """m = sum_i (mean_k A_ki) h_i, A_k = softmax_i(s_ik); the branches' own logits go beside [..., features]."""

    def __init__(
        self, in_features: int, features: int, hidden: int, branches: int, logits: int, masked: int, share: float
    ) -> None:
        super().__init__(in_features, features, hidden, branches, bias=False)
        self.sides = BranchLogits(features, branches, logits) if branches > 1 else None
        self.branches, self.masked, self.share = branches, masked, share

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        h, scores = self.attend(z, mask)
        if self.training and self.masked:
            scores = hide_strongest(scores, self.masked, self.share)
        attention = scores.softmax(-1)
        mean = attention.mean(-2)
        embedding = (mean.unsqueeze(-2) @ h).squeeze(-2)
        if self.sides is None:
            return Aggregated(embedding, instance_scores=mean)
        sides = self.sides(attention @ h)
        return Aggregated(embedding, likeness(attention), mean, sides, side_weight=1 / self.branches)

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each instance of one bag adds to the embedding [n, features]."""
        h, scores = self.attend(z, None)
        return scores.softmax(-1).mean(-2).unsqueeze(-1) * h


class QueryAttention(MultiHead):
    """LN(W_o [softmax(q k_i / sqrt(d / heads)) v_i]_heads): one learned query reads the instances h."""

    def __init__(self, features: int, heads: int, dropout: float) -> None:
        super().__init__(features, heads)
        self.norm = LayerNorm(features, eps=1e-6)
        self.dropout = dropout

    def scores(self, query: Tensor, h: Tensor, mask: Tensor | None) -> Tensor:
        """[..., heads, 1, n] of a query [..., 1, features]."""
        q, k = (part.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for part in (self.query(query), self.key(h)))
        found = q @ k.mT / math.sqrt(q.shape[-1])
        return found if mask is None else found.masked_fill(~mask[..., None, None, :], float("-inf"))

    def read(self, attention: Tensor, h: Tensor) -> Tensor:
        """[..., 1, features] of attention [..., heads, 1, n]."""
        v = self.value(h).unflatten(-1, (self.heads, -1)).transpose(-2, -3)
        return self.norm(dropout(self.out(join(attention @ v)), self.dropout, self.training))


class BagRead(nn.Module):
    """As QueryAttention, for attention that others made: only values, output and norm."""

    def __init__(self, features: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.value, self.out = Linear(features, features), Linear(features, features)
        self.norm = LayerNorm(features, eps=1e-6)
        self.heads, self.dropout = heads, dropout

    read = QueryAttention.read


class ACMILHeads(nn.Module):
    """Branches of multi-head attention, each with a learned query; the mean of their weights reads the bag."""

    def __init__(
        self, in_features: int, features: int, heads: int, branches: int, logits: int, masked: int, share: float,
        dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.enter = Linear(in_features, features, bias=False)
        self.query = nn.Parameter(torch.empty(branches, features))
        nn.init.normal_(self.query, std=1e-6)
        self.attention = nn.ModuleList(QueryAttention(features, heads, dropout) for _ in range(branches))
        self.bag = BagRead(features, heads, dropout)
        self.sides = BranchLogits(features, branches, logits) if branches > 1 else None
        self.masked, self.share = masked, share

    @property
    def layers(self) -> list[QueryAttention]:
        """The attention of each branch."""
        return [layer for layer in self.attention if isinstance(layer, QueryAttention)]

    def scores(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """[..., heads, branches, n]."""
        queries = per_run(self.query, 2, h.shape[:-2])
        each = zip(self.layers, queries.split(1, -2), strict=True)
        return torch.cat([layer.scores(query, h, mask) for layer, query in each], -2)

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        h = self.enter(z).relu()
        scores = self.scores(h, mask)
        if self.training and self.masked:
            scores = hide_strongest(scores, self.masked, self.share)
        attention = scores.softmax(-1)
        mean = attention.mean(-2, keepdim=True)
        embedding, weights = self.bag.read(mean, h).squeeze(-2), mean.mean(-3).squeeze(-2)
        if self.sides is None:
            return Aggregated(embedding, instance_scores=weights)
        each = zip(self.layers, attention.split(1, -2), strict=True)
        sides = self.sides(torch.cat([layer.read(own, h) for layer, own in each], -2))
        return Aggregated(embedding, likeness(attention).mean(-1), weights, sides, side_weight=1 / len(self.attention))


def half(features: int | None, encoded: int) -> int:
    """The published width: half of the input, where none is given."""
    return max(1, encoded // 2) if features is None else features


def shared_heads(features: int, heads: int | None, usual: int) -> int:
    """The number of heads; where none is given the usual one, or the largest divisor of it that features allow."""
    if heads is None:
        return math.gcd(features, usual)
    if features % heads:
        raise InputError(f"features is {features}, which {heads} heads cannot share evenly: use a multiple")
    return heads


class ACMIL(MILModel):
    """ACMIL: ``branches`` attentions that a loss makes different, averaged; the strongest instances hide in training.

    Implements multiple branch attention and stochastic top-k instance masking (Zhang et al. 2024). Loss: bag, mean of
    the branches' own, mean cosine of their attentions. masked: among how many of the largest scores of a branch the
    share ``mask_drop`` is hidden at random in a training step (0: none). attention: "gated" (default), or "heads":
    multi-head attention with a learned query for each branch (8 heads, as far as features can be shared evenly).
    features: half of the input where none is given.
    """

    name = "acmil"
    paper = "Zhang et al. 2024, Attention-challenging multiple instance learning"
    idle_parameters = ("aggregator.weight.bias", "aggregator.attention.*.key.bias")

    def __init__(
        self,
        *,
        attention: Attention = "gated",
        features: Size | None = None,
        hidden: Size = 128,
        heads: Count | None = None,
        branches: Count = 5,
        masked: Hidden = 10,
        mask_drop: Probability = 0.6,
        dropout: Probability = 0.1,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        size = half(features, self.encoded)
        if attention == "gated":
            self.aggregator = ACMILAggregator(
                self.encoded, size, hidden, branches, self.n_logits, masked, mask_drop
            )  # fmt: skip
        else:
            shared = shared_heads(size, heads, HEADS)
            self.aggregator = ACMILHeads(
                self.encoded, size, shared, branches, self.n_logits, masked, mask_drop, dropout
            )  # fmt: skip
        self.classifier = self.make_classifier(size)
        torch_default(self.aggregator)

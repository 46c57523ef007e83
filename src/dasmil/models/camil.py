"""CAMIL: Nystrom attention over all instances, joined to an attention over like neighbours."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.errors import InputError
from dasmil.models.bag_by_bag import BagByBag
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Range, Size
from dasmil.nn import Linear
from dasmil.nn.attention import join
from dasmil.nn.neighbours import nearest
from dasmil.nn.nystrom import by_heads, pseudo_inverse
from dasmil.nn.recompute import part_again

Fusion = Literal["paper", "program"]
COMPARED, KEPT, KERNEL, ITERATIONS = 16, 8, 33, 6
ROWS = 2048
Landmarks = Annotated[int, Range(1, 1024)]
"""A bag of fewer instances is filled up to as many."""
MOST_LANDMARKS = 8_192
"""Of all heads: each inverts a matrix of its own landmarks."""


class NystromLayer(nn.Module):
    """(softmax(q kl^T) pinv(softmax(ql kl^T)) (softmax(ql k^T) v) + convolution of v over heads) W + b, on x [n, d].

    ql, kl: means of consecutive tokens, as many as landmarks; zeros in front fill the last mean.
    """

    def __init__(self, features: int, heads: int, head_features: int, landmarks: int) -> None:
        super().__init__()
        width = heads * head_features
        self.qkv, self.out = Linear(features, 3 * width, bias=False), Linear(width, features)
        self.mix = nn.Parameter(torch.empty(KERNEL, head_features // heads, head_features))
        nn.init.xavier_uniform_(self.mix)
        self.heads, self.landmarks = heads, landmarks

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        padded = F.pad(x, (0, 0, -n % self.landmarks, 0))
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(0, 1) for p in self.qkv(padded).chunk(3, -1))
        q = q / math.sqrt(q.shape[-1])
        ql, kl = (p.unflatten(1, (self.landmarks, -1)).mean(2) for p in (q, k))
        inverse = pseudo_inverse((ql @ kl.mT).softmax(-1), ITERATIONS)
        return self.out(join(by_heads(q, k, v, ql, kl, inverse) + self._across_heads(v)))[-n:]

    def _across_heads(self, v: Tensor) -> Tensor:
        """Channels of a head in as many groups as heads, along the index of the head, as in the published program."""
        picture = v.permute(2, 0, 1).unsqueeze(0)  # [1, channels, heads, n]
        weight = self.mix.permute(2, 1, 0).unsqueeze(-1)
        found = F.conv2d(picture, weight, padding=(KERNEL // 2, 0), groups=self.heads)
        return found.squeeze(0).permute(1, 2, 0)


@torch.no_grad()
def like_neighbours(x: Tensor, coords: Tensor, section: Tensor | None) -> tuple[Tensor, Tensor]:
    """Index and weights [n, 8] of each instance and its neighbours: exp(-cosine distance, relative to 15 neighbours).

    Itself weighs as much as the most alike. An instance without neighbours weighs 1.
    """
    index = nearest(coords, COMPARED, section)
    unit = F.normalize(x, dim=-1)
    weights = []
    for start in range(0, len(x), ROWS):
        there = index[start : start + ROWS]
        apart = 1 - (unit[there.clamp(min=0)] @ unit[start : start + ROWS].unsqueeze(-1)).squeeze(-1)[:, 1:]
        apart = apart.masked_fill(there[:, 1:] < 0, 0)
        size = apart.norm(dim=-1, keepdim=True)
        like = (-apart / torch.where(size > 0, size, 1)).exp().masked_fill(there[:, 1:] < 0, 0)
        most = like.amax(-1, keepdim=True)
        weights.append(torch.cat([torch.where(most > 0, most, 1), like], -1)[:, :KEPT])
    return index[:, :KEPT], torch.cat(weights)


class CAMILAggregator(BagByBag):
    """t = x + Nystrom(x); l_i = sum_j A_ij q_i.k_j / sqrt(d); L_i = softmax_i(l) v(x_i); fused with t and pooled."""

    def __init__(
        self, features: int, heads: int, head_features: int, landmarks: int, local: int, hidden: int, fusion: str
    ) -> None:
        super().__init__()
        self.nystrom = NystromLayer(features, heads, head_features, landmarks)
        self.query, self.key = Linear(features, local, bias=False), Linear(features, local, bias=False)
        self.value = Linear(features, features)
        self.tanh, self.weight, self.gate = (
            Linear(a, b, bias=False) for a, b in ((features, hidden), (hidden, 1), (features, hidden))
        )
        self.fusion = fusion

    def _tokens(self, x: Tensor, coords: Tensor, section: Tensor | None) -> tuple[Tensor, Tensor]:
        """What is pooled [n, features] and its weights [n]."""
        t = x + self.nystrom(x)
        index, near = like_neighbours(x, coords, section)
        scores = part_again(_local_scores, self.query(t), self.key(t), index, near)
        local = scores.softmax(0).unsqueeze(-1) * self.value(x)
        if self.fusion == "paper":
            share = local.sigmoid()
            o = share * local + (1 - share) * t
        else:
            share = (-local).sigmoid().square()
            o = 2 * local * share + 2 * t * (1 - share)
        return o, self.weight(self.tanh(o).tanh() * self.gate(o).sigmoid()).squeeze(-1).softmax(0)

    def bag(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Aggregated:
        o, weights = self._tokens(z, coords, section)
        return Aggregated(weights @ o, instance_scores=weights)

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each token of one bag adds to the embedding [n, features]; it has seen the others by then."""
        o, weights = self._tokens(z, coords, section)
        return weights.unsqueeze(-1) * o


def _local_scores(q: Tensor, k: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    found = (k[index.clamp(min=0)] @ q.unsqueeze(-1)).squeeze(-1) / math.sqrt(q.shape[-1])
    return (found * weights.masked_fill(index < 0, 0)).sum(-1)


class CAMIL(MILModel):
    """CAMIL: context by Nystrom attention, and an attention that an instance gets from its like neighbours.

    Neighbours are the 7 nearest, weighed by how alike their features are among the 15 nearest; never across sections.
    fusion: "paper" sigma(L) L + (1 - sigma(L)) t, "program" 2 L w + 2 t (1 - w), w = sigma(-L)^2. Landmarks are means
    of consecutive instances, so their order matters. Memory grows with n; the program keeps n x n scores.
    """

    name = "camil"
    paper = "Fourkioti et al. 2024, CAMIL: context-aware multiple instance learning for cancer detection"
    position = "relative"
    permutation_invariant = False
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "mnist-collage": {"head_features": 8, "landmarks": 32, "local_features": 64, "hidden": 64}
    }

    def __init__(
        self,
        *,
        heads: Count = 8,
        head_features: Size = 64,
        landmarks: Landmarks = 256,
        local_features: Size = 256,
        hidden: Size = 128,
        fusion: Fusion = "paper",
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        if head_features % heads:
            raise InputError(
                f"head_features is {head_features}, expected a multiple of heads ({heads}): they are mixed in as many "
                "groups"
            )
        if heads * landmarks > MOST_LANDMARKS:
            raise InputError(
                f"{heads} heads with {landmarks:,} landmarks each are {heads * landmarks:,}, expected at most "
                f"{MOST_LANDMARKS:,}: every head inverts a matrix of its landmarks; choose fewer of either"
            )
        self.aggregator = CAMILAggregator(self.encoded, heads, head_features, landmarks, local_features, hidden, fusion)
        self.classifier = self.make_classifier(self.encoded)
        for part in (self.aggregator, self.classifier):
            for module in part.modules():
                if isinstance(module, Linear):
                    nn.init.xavier_uniform_(module.weight)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)

"""DTFD-MIL: pseudo-bags learn first, and what they distil is the bag of a second tier."""

from __future__ import annotations

from typing import Literal, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from dasmil.models.bag_by_bag import BagByBag
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Size
from dasmil.nn import Linear
from dasmil.nn.draws import permutation

Distil = Literal["afs", "max", "max-min", "mas"]
Split = Literal["random", "blocks"]


class GatedScores(nn.Module):
    """s_i = w . (tanh(V m_i + v) * sigmoid(U m_i + u)) + w_0: m [n, f] -> [n]."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.tanh, self.gate = Linear(features, hidden), Linear(features, hidden)
        self.weight = Linear(hidden, 1)

    def forward(self, m: Tensor) -> Tensor:
        return self.weight(self.tanh(m).tanh() * self.gate(m).sigmoid()).squeeze(-1)


class DistilledRows(NamedTuple):
    """What the first tier gives to the second: rows [r, f]; weights [r, n]: of the instances m in each row."""

    rows: Tensor
    weights: Tensor
    side_logits: Tensor


class DTFDAggregator(BagByBag):
    """m_i = ReLU(W z_i); pseudo-bags attend on their own; their distilled rows are attended to again [features]."""

    def __init__(
        self, in_features: int, features: int, hidden: int, logits: int, groups: int, distil: str, kept: int, split: str
    ) -> None:
        super().__init__()
        self.enter = Linear(in_features, features, bias=False)
        self.tier1, self.tier2 = GatedScores(features, hidden), GatedScores(features, hidden)
        self.side = Linear(features, logits)
        self.groups, self.distil, self.kept, self.split = groups, distil, kept, split

    def members(self, n: int, device: torch.device) -> list[Tensor]:
        """The instances of each pseudo-bag; at random while training, else every ``groups``-th one, always the same."""
        if self.split == "random" and not self.training:
            return [torch.arange(n, device=device)[g :: self.groups] for g in range(self.groups)]
        order = permutation(n) if self.split == "random" else torch.arange(n)
        return list(order.to(device).tensor_split(self.groups))

    def bag(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Aggregated:
        m = self.enter(z).relu()
        found = self._first_tier(m)
        rows = found.rows.detach() if self.training else found.rows  # the second loss does not train the first tier
        second = self.tier2(rows).softmax(0)
        return Aggregated(
            second @ rows,
            instance_scores=(second @ found.weights).detach(),
            side_logits=found.side_logits.squeeze(-1) if found.side_logits.shape[-1] == 1 else found.side_logits,
            side_weight=1 / self.groups,
        )

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each instance of one bag adds to the embedding [n, features]."""
        m = self.enter(z).relu()
        found = self._first_tier(m)
        return (self.tier2(found.rows).softmax(0) @ found.weights).unsqueeze(-1) * m

    def _first_tier(self, m: Tensor) -> DistilledRows:
        scores = self.tier1(m)
        weights, sides = [], []
        for members in self.members(len(m), m.device):
            own = m[members]
            attention = scores[members].softmax(0)
            pooled = attention @ own if len(own) else m.new_zeros(m.shape[-1])
            sides.append(self.side(pooled))
            chosen = self._distilled(own, attention)
            if len(own):
                weights.append(m.new_zeros(len(chosen), len(m)).index_copy(1, members, chosen))
            elif self.distil == "afs":  # an empty pseudo-bag is a row of zeros
                weights.append(m.new_zeros(1, len(m)))
        together = torch.cat(weights)
        return DistilledRows(together @ m, together, torch.stack(sides))

    def _distilled(self, own: Tensor, attention: Tensor) -> Tensor:
        """Weights [r, members] of the rows that a pseudo-bag gives to the second tier."""
        n = len(own)
        if self.distil == "afs":
            return attention.unsqueeze(0)
        one = torch.eye(n, dtype=own.dtype, device=own.device)
        if self.distil == "mas":
            return one[attention.detach().topk(min(self.kept, n)).indices]
        evidence = (attention.unsqueeze(-1) * own).detach() @ self.side.weight.detach().T
        positive = evidence[:, 0] if evidence.shape[-1] == 1 else evidence.log_softmax(-1)[:, -1]
        order = positive.argsort(descending=True)
        chosen = order[: self.kept]
        if self.distil == "max-min":
            chosen = torch.cat([chosen, order[-self.kept :]])
        return one[chosen]


class DTFDMIL(MILModel):
    """DTFD-MIL: ``groups`` pseudo-bags with gated attention, one row or more of each, gated attention over the rows.

    distil: "afs" the pseudo-bag's own mean (default); "max", "max-min" the ``kept`` instances that most (and least)
    support the last class, by the attention-weighted feature without the bias, as the program has it; "mas" those with
    the most attention. The loss is that of the bag plus the mean of the pseudo-bags'; the first never trains the first
    tier. split: "random" draws pseudo-bags anew while training; in evaluation instance i belongs to pseudo-bag
    i mod groups, so that a prediction is the same every time (the program draws there too); "blocks": consecutive.
    """

    name = "dtfd-mil"
    paper = "Zhang et al. 2022, DTFD-MIL: double-tier feature distillation multiple instance learning"
    permutation_invariant = False
    idle_parameters = ("aggregator.tier1.weight.bias", "aggregator.tier2.weight.bias")

    def __init__(
        self,
        *,
        features: Size = 512,
        hidden: Size = 128,
        groups: Count = 4,
        distil: Distil = "afs",
        kept: Count = 1,
        split: Split = "random",
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        self.aggregator = DTFDAggregator(self.encoded, features, hidden, self.n_logits, groups, distil, kept, split)
        self.classifier = self.make_classifier(features)

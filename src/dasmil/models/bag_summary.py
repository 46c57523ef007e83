"""A linear model on fixed numbers of a bag: means, quantiles, shares of types, covariances, what neighbours share."""

from __future__ import annotations

from typing import ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Size
from dasmil.nn.neighbours import nearest, nearest_of_types

Summary = Literal["mean", "spread", "types", "moments", "neighbours", "contacts", "near", "within"]
TYPED = ("types", "contacts", "near", "within")
"""Summaries that sort instances into types."""
QUANTILES = (0.1, 0.5, 0.9)
RARE = 0.005
"""The share of a type from which on its logarithm rises: rare types count by their order of magnitude."""


class BagNumbers(nn.Module):
    """Numbers of a bag of encoded instances z [n, f], each an exact sum over its instances.

    mean: the mean of every feature. spread: also the quantiles .1, .5 and .9, the maximum and the standard deviation.
    types: the share s of every type, the nearest of ``centres`` [types, within], and log(1 + s / 0.5 %).
    moments: the mean of every feature, and the covariances of the first ``within`` ones inside the bag.
    neighbours: also their covariances between an instance and the mean of its nearest neighbours.
    contacts: the square root of the share of neighbours that are of every two types.
    near: the logarithm of (the largest of ``lengths`` over the smallest distance of every two types), at least 0.
    within: the square root of the share of instances that are of a type and have one of another (or the same) type
    within a length, for every two types and each of ``lengths``.
    Neighbours are the ``neighbours`` nearest instances of the same section; distances end at sections, too.
    """

    centres: Tensor
    lengths: Tensor

    def __init__(
        self, summary: Summary, features: int, within: int, types: int, neighbours: int, lengths: int = 1
    ) -> None:
        super().__init__()
        self.summary, self.features, self.within, self.neighbours = summary, features, within, neighbours
        typed = summary in TYPED
        self.register_buffer("centres", torch.zeros(types if typed else 0, within))
        self.register_buffer("lengths", torch.ones(lengths if summary in ("near", "within") else 0))
        size = types if typed else within
        pairs = size * (size + 1) // 2
        self.out_features = {
            "mean": features,
            "spread": features * (len(QUANTILES) + 3),
            "types": 2 * types,
            "moments": features + pairs,
            "neighbours": features + 2 * pairs,
            "contacts": pairs,
            "near": pairs,
            "within": lengths * types**2,
        }[summary]

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        lead = z.shape[:-2]
        bags = z.reshape(-1, *z.shape[-2:])
        places = coords.reshape(-1, *coords.shape[-2:])
        masks = None if mask is None else mask.reshape(len(bags), -1)
        sections = None if section is None else section.reshape(len(bags), -1)
        rows = []
        for number, (own, at) in enumerate(zip(bags, places, strict=True)):
            where = None if sections is None else sections[number]
            if masks is not None:
                kept = masks[number]
                own, at, where = own[kept], at[kept], None if where is None else where[kept]
            rows.append(self.numbers(own, at, where))
        return Aggregated(torch.stack(rows).view(*lead, self.out_features))

    def numbers(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """The numbers of one bag [out]."""
        if self.summary == "mean":
            return z.mean(0)
        if self.summary == "spread":
            ordered = z.sort(0).values
            low, high, share = _ranks(len(z), z)
            quantiles = ordered[low] * (1 - share) + ordered[high] * share
            return torch.cat([z.mean(0), *quantiles, ordered[-1], z.std(0, correction=0)])
        return self.parts(z, coords, section).sum(0)

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each instance of one bag adds to its numbers [n, out]."""
        n, mean = len(z), z.mean(0)
        if self.summary == "mean":
            return z / n
        if self.summary == "spread":
            order = z.sort(0).indices
            low, high, share = _ranks(n, z)
            quantiles = [
                _at(z, order[a], 1 - s) + _at(z, order[b], s) for a, b, s in zip(low, high, share, strict=True)
            ]
            spread = z.std(0, correction=0)
            deviations = (z - mean).square() / (n * spread.clamp_min(1e-12))
            return torch.cat([z / n, *quantiles, _at(z, order[-1], torch.ones_like(mean)), deviations], 1)
        if self.summary in TYPED:
            return self._types(z, coords, section)
        centred = (z - mean)[:, : self.within]
        found = [z / n, self._products(centred, centred)]
        if self.summary == "neighbours":
            found.append(self._products(centred, self._around(centred, coords, section)))
        return torch.cat(found, 1)

    def _products(self, a: Tensor, b: Tensor) -> Tensor:
        """Products of every two columns, the mean of both ways [n, pairs], over the number of instances."""
        first, second = torch.triu_indices(a.shape[1], a.shape[1])
        return (a[:, first] * b[:, second] + b[:, first] * a[:, second]) / (2 * len(a))

    def _around(self, x: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """The mean of x over the neighbours of every instance; 0 where it has none."""
        near = nearest(coords, self.neighbours + 1, section)[:, 1:]
        known = (near >= 0).to(x)
        return (x[near.clamp_min(0)] * known.unsqueeze(-1)).sum(1) / known.sum(1, keepdim=True).clamp_min(1)

    def _types(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        kinds = torch.cdist(z[:, : self.within], self.centres).argmin(1)
        member = F.one_hot(kinds, len(self.centres)).to(z) / len(z)
        if self.summary == "types":
            share = member.sum(0)
            return torch.cat([member, member * torch.log1p(share / RARE) / share.clamp_min(1e-12)], 1)
        if self.summary == "near":
            return self._nearest(z, kinds, coords, section)
        if self.summary == "within":
            apart = nearest_of_types(coords, kinds, len(self.centres), section, float(self.lengths.max()))
            close = (apart.unsqueeze(2) <= self.lengths.to(apart)).to(z).flatten(1)
            counts = (member.unsqueeze(2) * close.unsqueeze(1)).flatten(1)
            return counts / counts.sum(0).clamp_min(1e-12).sqrt()
        pairs = self._products(len(z) * member, len(z) * self._around(member, coords, section))
        return pairs / pairs.sum(0).clamp_min(1e-12).sqrt()

    def _nearest(self, z: Tensor, kinds: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """Half of the number of every two types for the instances of each that come nearest [n, pairs]."""
        longest, count = self.lengths.max().to(z), len(self.centres)
        apart = nearest_of_types(coords, kinds, count, section, float(longest)).to(z)
        halves = z.new_zeros(len(z), count, count)
        for kind in kinds.unique():
            own = kinds == kind
            distance = apart[own].amin(0)
            near = (longest / distance.clamp_min(1e-6 * longest)).log().clamp_min(0.0)
            nearest_ones = (apart[own] <= distance).to(z)
            halves[own, kind] = near / 2 * nearest_ones / nearest_ones.sum(0)
        first, second = torch.triu_indices(count, count, device=z.device)
        return halves[:, first, second] + halves[:, second, first]


def _ranks(n: int, like: Tensor) -> tuple[list[int], list[int], Tensor]:
    """The two ranks around each quantile, and the share [quantiles, 1] of the upper one."""
    at = [q * (n - 1) for q in QUANTILES]
    low = [int(a) for a in at]
    share = torch.tensor([a - rank for a, rank in zip(at, low, strict=True)]).to(like).unsqueeze(-1)
    return low, [min(rank + 1, n - 1) for rank in low], share


def _at(z: Tensor, row: Tensor, factor: Tensor) -> Tensor:
    """z where an instance has this row of its column, else 0 [n, f], times a factor."""
    found = torch.zeros_like(z)
    row = row.unsqueeze(0)
    return found.scatter_(0, row, z.gather(0, row) * factor)


class BagSummary(MILModel):
    """logit = w . s + b, where s are fixed numbers of the bag (see ``BagNumbers``), each an exact sum over instances.

    `dasmil.fit` fits w by a ridge regression for its simple candidates; trained by gradient it is a linear model.
    within: how many leading encoded features are types or products made of (default: all).
    """

    name = "bag-summary"
    paper = "dasmil (means, quantiles, types and neighbours; no paper)"
    stackable: ClassVar[bool] = False

    def __init__(
        self,
        *,
        summary: Summary = "mean",
        within: Size | None = None,
        types: Size = 8,
        neighbours: Count = 8,
        lengths: Count = 1,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        within = self.encoded if within is None else min(within, self.encoded)
        self.aggregator = BagNumbers(summary, self.encoded, within, types, neighbours, lengths)
        self.classifier = self.make_classifier(self.aggregator.out_features)
        self.position = "relative" if summary in ("neighbours", "contacts", "near", "within") else "none"  # pyright: ignore

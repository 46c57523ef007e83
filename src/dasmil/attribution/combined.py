"""The account of a weighted sum of models: the weighted sum of their accounts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dasmil.types import Explanation, Pair, PairSum


def added(parts: Sequence[tuple[float, Explanation]], like: Explanation, bias: float, top: int) -> Explanation:
    """Explanations of members for one target, each with its weight, as one; like: what the sum is of, without parts.

    bias: what the sum has of its own. Pairs and sums of pairs are those of all members, added up where they are alike.
    """
    contributions = _sum([(w, e.contributions) for w, e in parts], like.contributions)
    distances = [(w, e.distance_part) for w, e in parts if e.distance_part is not None]
    total = bias + sum(w * e.bias for w, e in parts)
    strengths = [abs(w) * float(e.contributions.abs().sum()) for w, e in parts]
    shared = [(s, e.distance_share) for s, (_, e) in zip(strengths, parts, strict=True) if e.distance_share is not None]
    share = None
    if shared and sum(strengths) > 0:
        share = sum(s * part for s, part in shared) / sum(strengths)
    attention = [(w, e.scores["attention"]) for w, e in parts if "attention" in e.scores]
    scores = {"contribution": contributions}
    if distances and share:
        scores["distance"] = _sum(distances, contributions)
    if attention:
        weights = sum(w for w, _ in attention) or 1.0
        scores["attention"] = _sum([(w / weights, a) for w, a in attention], contributions)
    return replace(
        like,
        method="exact" if all(e.method == "exact" for _, e in parts) else "integrated-gradients",
        bias=total,
        residual=like.logit - total - float(contributions.double().sum()),
        contributions=contributions,
        distance_part=_sum(distances, contributions) if distances else None,
        distance_share=share,
        pairs=_pairs(parts, top),
        scores=scores,
        sums=_sums(parts),
    )


def _sum(parts: Sequence[tuple[float, Tensor]], like: Tensor) -> Tensor:
    return torch.stack([w * values.to(like) for w, values in parts]).sum(0) if parts else torch.zeros_like(like)


def _pairs(parts: Sequence[tuple[float, Explanation]], top: int) -> tuple[Pair, ...]:
    found: dict[tuple[int, int, int], Pair] = {}
    for weight, explanation in parts:
        for pair in explanation.pairs:
            key = pair.i, pair.j, pair.head
            scaled = replace(pair, contribution=weight * pair.contribution, distance_part=weight * pair.distance_part)
            same = found.get(key)
            found[key] = scaled if same is None else replace(
                same,
                contribution=same.contribution + scaled.contribution,
                distance_part=same.distance_part + scaled.distance_part,
                weight=max(same.weight, scaled.weight),
            )  # fmt: skip
    return tuple(sorted(found.values(), key=lambda pair: -abs(pair.contribution))[:top])


def _sums(parts: Sequence[tuple[float, Explanation]]) -> dict[str, tuple[PairSum, ...]]:
    found: dict[str, dict[tuple[tuple[str, ...], tuple[tuple[float, float], ...]], float]] = {}
    for weight, explanation in parts:
        for name, sums in explanation.sums.items():
            own = found.setdefault(name, {})
            for one in sums:
                key = one.between, one.places
                own[key] = own.get(key, 0.0) + weight * one.contribution
    return {
        name: tuple(
            PairSum(between, value, places)
            for (between, places), value in sorted(own.items(), key=lambda item: -abs(item[1]))
        )
        for name, own in found.items()
    }

"""Exact split of a logit into what each instance and each pair of instances gave, with the attention weights held.

After the softmax everything up to the logit is a maximum (or mean, or sum) and linear maps, so

    logit = bias + sum_f w_f z_{i*(f), f} = bias + sum_f w_f sum_j alpha_{i*(f) j} (v_j + bV_{i*(f) j})_f

where i*(f) is the row that won the maximum of feature f. The pair (i*, j) has the contribution under the sum; a pair
matters by both of its ends, so each instance gets half of it. Only rows that won are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dasmil.attribution.groups import Grouping
from dasmil.attribution.rows import PairAttention, Rows
from dasmil.types import Pair


@dataclass(frozen=True, eq=False)
class LayerSplit:
    """sum_{h,i,f} weight_hif z_hif of one attention layer, split over the instances j that the rows look at.

    features, distance, constant: [n], what came from v_j and from bV_ij, all of it to the instance j that was looked
    at; bV_ij counts as distance where it depends on the distance, and as constant in a head whose phi is flat;
    features_both, ...: [n], the same, half to each of the two ends i and j; strength, support: [n], half of
    each pair contribution to each end: its absolute value, or only where it is positive;
    given: [n], the attention that the rows gave, mean over the rows; absolute_*: sums over pairs; below: [h, n, o], the
    weights of the values v_j (for the layer below), if asked for; rows: of each head, which rows were computed and
    their norms; grouped: for each grouping that was asked for, the sums of the pair contributions.
    """

    features: Tensor
    distance: Tensor
    constant: Tensor
    features_both: Tensor
    distance_both: Tensor
    constant_both: Tensor
    strength: Tensor
    support: Tensor
    given: Tensor
    absolute_features: float
    absolute_distance: float
    absolute_constant: float
    pairs: tuple[Pair, ...]
    below: Tensor | None
    rows: tuple[tuple[Tensor, Tensor], ...]
    grouped: tuple[Tensor, ...]


def pooling_weights(z: Tensor, weight: Tensor, pooling: str) -> Tensor:
    """The weight [n, f] of every entry of z [n, f] in weight . pool(z): for a maximum, only the winners have one."""
    n, f = z.shape
    if pooling == "sum":
        return weight.expand(n, f)
    if pooling == "mean":
        return (weight / n).expand(n, f)
    out = torch.zeros_like(z)
    out[z.argmax(0), torch.arange(f, device=z.device)] = weight
    return out


def split_layer(
    attention: PairAttention,
    weights: Tensor,
    *,
    top: int = 0,
    below: bool = False,
    groupings: Sequence[Grouping] = (),
) -> LayerSplit:
    """Split the weighted sum of a layer's outputs, weights [h, n, o]; rows without weight are never computed."""
    like = attention.value
    features, distance, constant, strength, support, given = (like.new_zeros(attention.n) for _ in range(6))
    features_both, distance_both, constant_both = (torch.zeros_like(features) for _ in range(3))
    down = torch.zeros_like(like) if below else None
    absolute_features, absolute = 0.0, {"distance": 0.0, "constant": 0.0}
    pairs: list[Pair] = []
    computed: list[tuple[Tensor, Tensor]] = []
    grouped = tuple(like.new_zeros(grouping.shape, dtype=torch.float64) for grouping in groupings)
    for head in range(attention.heads):
        index = weights[head].ne(0).any(-1).nonzero()[:, 0]
        norms = [like.new_zeros(0)]
        flat = attention.flat[head]
        embedded, embedded_both = (constant, constant_both) if flat else (distance, distance_both)
        for rows in attention.blocks(head, index):
            norms.append(rows.norm)
            g = weights[head, rows.index]
            by_features, by_embedding = _parts(attention, rows, g)
            pair = by_features + by_embedding
            features += by_features.sum(0)
            embedded += by_embedding.sum(0)
            given += rows.weights.sum(0)
            absolute_features += float(by_features.abs().sum())
            absolute["constant" if flat else "distance"] += float(by_embedding.abs().sum())
            for score, whole in (
                (features_both, by_features),
                (embedded_both, by_embedding),
                (strength, pair.abs()),
                (support, pair.clamp(min=0)),
            ):
                score += whole.sum(0) / 2
                score.index_add_(0, rows.index, whole.sum(1) / 2)
            if down is not None:
                down[head] += rows.weights.T @ g
            for total, grouping in zip(grouped, groupings, strict=True):
                grouping.add(total, rows, pair)
            if top:
                of_distance = torch.zeros_like(pair) if flat else by_embedding
                pairs = _strongest(pairs + _pairs(attention, rows, pair, of_distance, top), top)
        computed.append((index, torch.cat(norms)))
    return LayerSplit(
        features=features,
        distance=distance,
        constant=constant,
        features_both=features_both,
        distance_both=distance_both,
        constant_both=constant_both,
        strength=strength,
        support=support,
        given=given / max(sum(len(index) for index, _ in computed), 1),
        absolute_features=absolute_features,
        absolute_distance=absolute["distance"],
        absolute_constant=absolute["constant"],
        pairs=tuple(pairs),
        below=down,
        rows=tuple(computed),
        grouped=grouped,
    )


def _parts(attention: PairAttention, rows: Rows, g: Tensor) -> tuple[Tensor, Tensor]:
    """What every pair of these rows contributes: by features, and by the embedding of the values."""
    by_features = rows.weights * (g @ attention.value[rows.head].T)
    if rows.mix is None or attention.value_embed is None:
        return by_features, torch.zeros_like(by_features)
    return by_features, rows.weights * rows.mix.rows(g @ attention.value_embed[rows.head].T)


def _pairs(attention: PairAttention, rows: Rows, pair: Tensor, by_distance: Tensor, top: int) -> list[Pair]:
    flat = pair.abs().flatten().topk(min(top, pair.numel())).indices
    found = []
    for r, j in zip((flat // attention.n).tolist(), (flat % attention.n).tolist(), strict=True):
        i = int(rows.index[r])
        found.append(
            Pair(
                i=i,
                j=j,
                head=rows.head,
                contribution=float(pair[r, j]),
                distance_part=float(by_distance[r, j]),
                weight=float(rows.weights[r, j]),
                **place(attention, rows, r, j),
            )
        )
    return found


def place(attention: PairAttention, rows: Rows, r: int, j: int, column: int | None = None) -> dict[str, float | None]:
    """Distance of a pair and phi at that distance; pairs across sections have neither, nor a flat phi a value.

    column: where instance j stands in the rows, if they hold only some columns.
    """
    i, c = int(rows.index[r]), j if column is None else column
    if attention.section is not None and (attention.section[i] != attention.section[j] or attention.section[i] < 0):
        return {"distance": None, "phi": None}
    phi = rows.mix.phi if rows.mix is not None else None
    if phi is None or attention.flat[rows.head] or (i == j and not attention.self_pair):
        return {"distance": float(rows.distance[r, c]), "phi": None}
    return {"distance": float(rows.distance[r, c]), "phi": float(phi[r, c])}


def both_ways(pairs: Iterable[Pair]) -> list[Pair]:
    """Pairs of different instances (i < j), strongest first: what each end took from the other, added up over heads."""
    found: dict[tuple[int, int], Pair] = {}
    for p in pairs:
        if p.i == p.j:
            continue
        ends = (min(p.i, p.j), max(p.i, p.j))
        same = found.get(ends)
        if same is None:
            found[ends] = replace(p, i=ends[0], j=ends[1])
        else:
            found[ends] = replace(
                same,
                contribution=same.contribution + p.contribution,
                distance_part=same.distance_part + p.distance_part,
                weight=max(same.weight, p.weight),
            )
    return _strongest(list(found.values()), len(found))


def _strongest(pairs: list[Pair], top: int) -> list[Pair]:
    return sorted(pairs, key=lambda p: -abs(p.contribution))[:top]

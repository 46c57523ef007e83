"""Distance-aware self-attention as the paper writes it: dense n x n x d tensors, plain autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from dasmil.ops.das_attention.dropout import make_dropout
from dasmil.ops.das_attention.operands import Operands, Settings
from dasmil.ops.das_attention.phi import PHI


def pair_distances(coords: Tensor) -> Tensor:
    """Euclidean distances [..., n, n] from differences (not from a matrix product, which loses digits)."""
    squared = (coords.unsqueeze(-2) - coords.unsqueeze(-3)).square().sum(-1)
    # sqrt has no gradient at 0; the inner `where` keeps coincident points free of NaN.
    positive = squared > 0
    return torch.where(positive, squared, 1.0).sqrt() * positive


def reference(x: Operands, settings: Settings) -> tuple[Tensor, Tensor]:
    """Output [..., h, n, o] and attention weights [..., h, n, n].

    Implements eqs. (das:output) and (das:compatibility) with b_ij = phi(delta_ij) u + (1 - phi(delta_ij)) v.
    """
    n = x.n
    # [..., 1, n, n]: which pairs have a distance at all; the others get b_ij = 0.
    related = torch.ones(n, n, dtype=x.query.dtype, device=x.query.device)
    if not settings.self_pair:
        related = related - torch.eye(n, dtype=x.query.dtype, device=x.query.device)
    if x.section is not None:
        related = related * (x.section.unsqueeze(-1) == x.section.unsqueeze(-2)).unsqueeze(-3)

    def b(embed: Tensor) -> Tensor:
        """b_ij [..., h, n, n, d]: the interpolation between u (row 0) and v (row 1)."""
        assert x.theta is not None
        assert x.beta is not None
        delta = (pair_distances(x.coords) / settings.distance_scale).unsqueeze(-3)
        f = PHI[settings.phi]((delta - x.theta[..., None, None]) * x.beta[..., None, None]).unsqueeze(-1)
        u, v = embed[..., 0, None, None, :], embed[..., 1, None, None, :]
        return related.unsqueeze(-1) * (f * u + (1 - f) * v)

    e = x.query @ x.key.transpose(-1, -2)
    if x.key_embed is not None:
        e = e + (x.query.unsqueeze(-2) * b(x.key_embed)).sum(-1)
    if x.query_embed is not None:
        e = e + (x.key.unsqueeze(-3) * b(x.query_embed)).sum(-1)
    if settings.product_term and x.key_embed is not None and x.query_embed is not None:
        e = e + (b(x.query_embed) * b(x.key_embed)).sum(-1)
    e = e * settings.scale
    if x.mask is not None:
        e = e.masked_fill(~x.mask[..., None, None, :], float("-inf"))
    weights = e.softmax(-1)
    if settings.seeds is not None:
        weights = weights * _kept(weights, settings.dropout_p, settings.seeds)
    z = weights @ x.value
    if x.value_embed is not None:
        z = z + (weights.unsqueeze(-1) * b(x.value_embed)).sum(-2)
    return z, weights


def _kept(weights: Tensor, p: float, seeds: Tensor) -> Tensor:
    """The dropout factors [..., h, n, n]."""
    items = weights.shape[:-2].numel()
    each = torch.arange(weights.shape[-1], device=weights.device)
    return make_dropout(p, seeds, items, weights.device).keep(slice(0, items), each, each, weights).view(weights.shape)

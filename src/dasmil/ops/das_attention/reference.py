"""Distance-aware self-attention as the paper writes it: dense n x n x d tensors, plain autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from dasmil.ops.das_attention.bias import ROOM, distance_bias
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
        related = related * _together(x.section).unsqueeze(-3)
    delta = (pair_distances(x.coords) / settings.distance_scale).unsqueeze(-3)

    def b(embed: Tensor) -> Tensor:
        """b_ij [..., h, n, n, d]: the interpolation between u (row 0) and v (row 1)."""
        assert x.theta is not None
        assert x.beta is not None
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
    if settings.bias is not None:
        e = e + related * distance_bias(settings.bias, delta, x.bias_scale, x.bias_table, x.bias_edges)
    weights = e.masked_fill(~_seen(x, settings, delta), float("-inf")).softmax(-1)
    if settings.seeds is not None:
        weights = weights * _kept(weights, settings.dropout_p, settings.seeds)
    z = weights @ x.value
    if x.value_embed is not None:
        z = z + (weights.unsqueeze(-1) * b(x.value_embed)).sum(-2)
    return z, weights


def _together(section: Tensor) -> Tensor:
    """[..., n, n]: pairs of one section; section -1 is that of tokens without a place, which are in none."""
    return (section.unsqueeze(-1) == section.unsqueeze(-2)) & (section >= 0).unsqueeze(-1)


def _seen(x: Operands, settings: Settings, delta: Tensor) -> Tensor:
    """[..., 1 or h, n, n]: which columns a row attends to."""
    seen = torch.ones(1, x.n, x.n, dtype=torch.bool, device=delta.device)
    if x.mask is not None:
        seen = seen & x.mask[..., None, None, :]
    if settings.radius is None:
        return seen
    radius = torch.tensor(settings.radius, dtype=torch.float64, device=delta.device)[:, None, None]
    near = delta.double() <= radius * (1 + ROOM)
    if x.section is not None:
        token = x.section < 0
        near = near & _together(x.section).unsqueeze(-3)
        near = near | (token.unsqueeze(-1) | token.unsqueeze(-2)).unsqueeze(-3)
    # Everyone sees itself, so that no row, not even one of padding, is empty.
    return (seen & near) | torch.eye(x.n, dtype=torch.bool, device=delta.device)


def _kept(weights: Tensor, p: float, seeds: Tensor) -> Tensor:
    """The dropout factors [..., h, n, n]."""
    items = weights.shape[:-2].numel()
    each = torch.arange(weights.shape[-1], device=weights.device)
    return make_dropout(p, seeds, items, weights.device).keep(slice(0, items), each, each, weights).view(weights.shape)

"""Distance-aware self-attention as the paper writes it: dense n x n x d tensors, plain autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from dasmil.ops.das_attention.phi import PHI


def pair_distances(coords: Tensor) -> Tensor:
    """Euclidean distances [..., n, n] from differences (not from a matrix product, which loses digits)."""
    squared = (coords.unsqueeze(-2) - coords.unsqueeze(-3)).square().sum(-1)
    # sqrt has no gradient at 0; the inner `where` keeps coincident points free of NaN.
    positive = squared > 0
    return torch.where(positive, squared, 1.0).sqrt() * positive


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    coords: Tensor,
    *,
    theta: Tensor | None,
    beta: Tensor | None,
    key_embed: Tensor | None,
    query_embed: Tensor | None,
    value_embed: Tensor | None,
    phi: str,
    scale: float,
    distance_scale: float,
    product_term: bool,
    self_pair: bool,
    mask: Tensor | None,
    section: Tensor | None,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Output [..., h, n, o] and attention weights [..., h, n, n].

    Implements eqs. (das:output) and (das:compatibility) with b_ij = phi(delta_ij) u + (1 - phi(delta_ij)) v.
    """
    n = query.shape[-2]
    # [..., 1, n, n]: which pairs have a distance at all; the others get b_ij = 0.
    related = torch.ones(n, n, dtype=query.dtype, device=query.device)
    if not self_pair:
        related = related - torch.eye(n, dtype=query.dtype, device=query.device)
    if section is not None:
        related = related * (section.unsqueeze(-1) == section.unsqueeze(-2)).unsqueeze(-3)

    def b(embed: Tensor) -> Tensor:
        """b_ij [..., h, n, n, d]: the interpolation between u (row 0) and v (row 1)."""
        assert theta is not None
        assert beta is not None
        delta = (pair_distances(coords) / distance_scale).unsqueeze(-3)
        f = PHI[phi]((delta - theta[..., None, None]) * beta[..., None, None]).unsqueeze(-1)
        u, v = embed[..., 0, None, None, :], embed[..., 1, None, None, :]
        return related.unsqueeze(-1) * (f * u + (1 - f) * v)

    e = query @ key.transpose(-1, -2)
    if key_embed is not None:
        e = e + (query.unsqueeze(-2) * b(key_embed)).sum(-1)
    if query_embed is not None:
        e = e + (key.unsqueeze(-3) * b(query_embed)).sum(-1)
    if product_term and key_embed is not None and query_embed is not None:
        e = e + (b(query_embed) * b(key_embed)).sum(-1)
    e = e * scale
    if mask is not None:
        e = e.masked_fill(~mask[..., None, None, :], float("-inf"))
    weights = e.softmax(-1)
    if keep is not None:  # dropout
        weights = weights * keep
    z = weights @ value
    if value_embed is not None:
        z = z + (weights.unsqueeze(-1) * b(value_embed)).sum(-2)
    return z, weights

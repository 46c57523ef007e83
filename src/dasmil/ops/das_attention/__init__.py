"""Distance-aware self-attention: one call, several exact implementations."""

from __future__ import annotations

import torch
from torch import Tensor

from dasmil.errors import InputError, unknown_name
from dasmil.ops.das_attention.phi import PHI
from dasmil.ops.das_attention.reference import reference

BACKENDS = ("auto", "reference")

__all__ = ["BACKENDS", "PHI", "das_attention"]


def das_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    coords: Tensor,
    *,
    theta: Tensor | None = None,
    beta: Tensor | None = None,
    key_embed: Tensor | None = None,
    query_embed: Tensor | None = None,
    value_embed: Tensor | None = None,
    phi: str = "sigmoid",
    scale: float,
    distance_scale: float = 1.0,
    product_term: bool = False,
    self_pair: bool = True,
    mask: Tensor | None = None,
    section: Tensor | None = None,
    dropout_p: float = 0.0,
    return_weights: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend over a bag with attention that knows the distances between its instances.

    Shapes: query, key [..., h, n, d]; value [..., h, n, o]; coords [..., n, 2 or 3]; theta, beta [..., h];
    *_embed [..., h, 2, d or o], row 0 = u, row 1 = v; mask [..., n], False = padding; section [..., n].
    theta, beta and the embeddings may have the leading dimensions of query or none.
    Returns [..., h, n, o], with ``return_weights`` also the weights [..., h, n, n].
    """
    if backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    if phi not in PHI:
        raise unknown_name("phi", phi, PHI)
    if query.shape[-2] == 0:
        raise InputError("the bag is empty: query has no instances")
    with torch.autocast(query.device.type, enabled=False):
        output, weights = reference(
            query, key, value, coords, theta=theta, beta=beta, key_embed=key_embed, query_embed=query_embed,
            value_embed=value_embed, phi=phi, scale=scale, distance_scale=distance_scale, product_term=product_term,
            self_pair=self_pair, mask=mask, section=section, dropout_p=dropout_p,
        )  # fmt: skip
    return (output, weights) if return_weights else output

"""Distance-aware self-attention: one call, several exact implementations."""

from __future__ import annotations

import functools
import warnings

import torch
from torch import Tensor

from dasmil.errors import InputError, unknown_name
from dasmil.ops.das_attention.chunked import chunked
from dasmil.ops.das_attention.dropout import draw_seed, keep_factors
from dasmil.ops.das_attention.factored import Options, attend, fold, make_pairs, unfold
from dasmil.ops.das_attention.inputs import check_scales, check_settings, check_shapes, check_values
from dasmil.ops.das_attention.native import Settings, available, check_supported, load, native
from dasmil.ops.das_attention.phi import PHI
from dasmil.ops.das_attention.reference import reference

BACKENDS = ("auto", "reference", "chunked", "native")

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
    scale: float | Tensor,
    distance_scale: float | Tensor = 1.0,
    product_term: bool = False,
    self_pair: bool = True,
    mask: Tensor | None = None,
    section: Tensor | None = None,
    dropout_p: float = 0.0,
    return_weights: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend over a bag with attention that knows the distances between its instances.

    Implements eqs. (das:output) and (das:compatibility) of the paper, exactly, in memory that grows with n.

    Shapes: query, key [..., h, n, d]; value [..., h, n, o]; coords [..., n, 2 or 3]; theta, beta [..., h];
    *_embed [..., h, 2, d or o], row 0 = u, row 1 = v; mask [..., n], False = padding; section [..., n].
    All but query, key and value may lack leading dimensions (or have 1 there) and are then shared.
    Returns [..., h, n, o], with ``return_weights`` also the weights [..., h, n, n] (after dropout), which are then
    computed densely: n x n numbers per head, n x n x d with backend="reference".

    dropout_p drops weights whenever it is above 0: pass 0 outside training. All backends drop the same weights
    under the same ``torch.manual_seed``. float16 and bfloat16 are computed in float32.
    Gradients reach all tensors but coords, whose gradient only backend="reference" gives; a scale or distance_scale
    that is to be learned is a tensor of one number. vmap, torch.func and torch.compile: see this folder's README.
    backend: "native" (CPU, float32 and below), "chunked" (PyTorch, any device and dtype), "reference" (the equations as
    written), "auto": native where it can, else chunked; a missing native kernel is reported once.
    """
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    if not isinstance(phi, str) or phi not in PHI:
        raise unknown_name("phi", phi, PHI)
    check_settings(dropout_p, product_term, self_pair, return_weights)
    check_scales(scale, distance_scale)
    check_shapes(query, key, value, coords, theta, beta, key_embed, query_embed, value_embed, mask, section)
    if coords.requires_grad and backend != "reference" and torch.is_grad_enabled():
        raise InputError(
            "coords require a gradient, which only backend='reference' gives; use it or pass coords.detach()"
        )
    if backend == "auto":
        backend = _choose(query)
    elif backend == "native":
        check_supported(query.device, query.dtype)
    if backend != "native" or return_weights:
        check_values(coords, mask)  # the kernel finds these itself
    dtype = query.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if coords.dtype == torch.float64 and wide == torch.float32:
        coords = coords - coords[..., :1, :]  # before rounding: an offset must not cost digits of the distances
    query, key, value, coords = [t if t.dtype is wide else t.to(wide) for t in (query, key, value, coords)]
    theta, beta, key_embed, query_embed, value_embed = [
        t if t is None or t.dtype is wide else t.to(wide) for t in (theta, beta, key_embed, query_embed, value_embed)
    ]
    if key_embed is None and query_embed is None and value_embed is None:
        theta = beta = None
    if isinstance(scale, Tensor):  # each term of the logits has one factor query or query_embed, so autograd sees it
        scale, factor = 1.0, scale.to(query).reshape(())
        query = query * factor
        query_embed = None if query_embed is None else query_embed * factor
    if isinstance(distance_scale, Tensor):  # delta / length - theta = (delta - theta length) / length
        distance_scale, length = 1.0, distance_scale.to(query).reshape(())
        if theta is not None and beta is not None:
            theta, beta = theta * length, beta / length
    seed = draw_seed() if dropout_p > 0 else 0
    if backend == "native" and not return_weights:
        settings = Settings(phi, scale, distance_scale, product_term, self_pair, dropout_p, seed)
        z = native(query, key, value, coords, theta, beta, key_embed, query_embed, value_embed, mask, section, settings)
        return z if dtype is wide else z.to(dtype)
    lead = query.shape[:-2]
    partial = section is not None or not self_pair
    options = Options(phi, self_pair, dropout_p, seed)
    with torch.autocast(query.device.type, enabled=False):
        if backend == "reference":
            n = query.shape[-2]
            whole = slice(0, lead.numel()), slice(0, n)
            keep = keep_factors(seed, dropout_p, query, n, *whole).view(*lead, n, n) if dropout_p > 0 else None
            z, weights = reference(
                query, key, value, coords, theta=theta, beta=beta, key_embed=key_embed, query_embed=query_embed,
                value_embed=value_embed, phi=phi, scale=scale, distance_scale=distance_scale, product_term=product_term,
                self_pair=self_pair, mask=mask, section=section, keep=keep,
            )  # fmt: skip
            return (z.to(dtype), weights.to(dtype)) if return_weights else z.to(dtype)
        factors = fold(
            query, key, value, theta, beta, key_embed, query_embed, value_embed, scale=scale,
            distance_scale=distance_scale, product_term=product_term, partial=partial,
        )  # fmt: skip
        pairs = make_pairs(lead, coords, mask, section)
        if return_weights:
            weights, output, g_sum, m_sum = attend(factors, pairs, options)
            z = unfold(output, g_sum, m_sum if partial else None, value_embed, lead)
            return z.to(dtype), weights.reshape(*lead, *weights.shape[1:]).to(dtype)
        output, g_sum, m_sum = chunked(factors, pairs, options)
        return unfold(output, g_sum, m_sum if partial else None, value_embed, lead).to(dtype)


def _choose(query: Tensor) -> str:
    if query.device.type != "cpu" or query.dtype == torch.float64:
        return "chunked"
    if available():
        return "native"
    _report_missing()
    return "chunked"


@functools.cache
def _report_missing() -> None:
    warnings.warn(
        f"the native attention kernel is missing: {load()}; using the slower backend 'chunked'",
        RuntimeWarning,
        stacklevel=4,
    )

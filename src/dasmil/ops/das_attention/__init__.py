"""Distance-aware self-attention: one call, several exact implementations."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from dasmil.errors import BackendError, InputError, unknown_name
from dasmil.ops.das_attention import triton_backend, triton_trust
from dasmil.ops.das_attention.bias import BIASES
from dasmil.ops.das_attention.chunked import chunked
from dasmil.ops.das_attention.dropout import draw_seeds
from dasmil.ops.das_attention.factored import dense
from dasmil.ops.das_attention.inputs import (
    check_bias,
    check_radius,
    check_scales,
    check_seed,
    check_settings,
    check_shapes,
    check_values,
)
from dasmil.ops.das_attention.native import available, check_supported, load, native
from dasmil.ops.das_attention.operands import Operands, Settings, absorb_scales, clear_padding, widen
from dasmil.ops.das_attention.phi import PHI
from dasmil.ops.das_attention.reference import reference

BACKENDS = ("auto", "reference", "chunked", "native", "triton")

__all__ = ["BACKENDS", "BIASES", "PHI", "das_attention", "written_out"]


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
    bias: str | None = None,
    bias_scale: Tensor | None = None,
    bias_table: Tensor | None = None,
    bias_edges: Tensor | None = None,
    radius: float | Sequence[float] | Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | Tensor | None = None,
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

    bias adds a function of the distance to the logits: "linear" -s delta (ALiBi), "gaussian" -delta^2 / (2 s^2),
    "cauchy" -log(1 + (delta / s)^2) with s = bias_scale [..., h]; "bins" bias_table [..., h, bins], where bin k goes
    from bias_edges[k - 1] to bias_edges[k]. delta, edges and radius are in units of distance_scale. Pairs without a
    distance have no bias.
    radius, one number or one for each head: a pair farther apart, or of two sections, has weight 0, and blocks of such
    pairs are never computed: the cost grows with the neighbours. Every instance sees at least itself.
    section -1: a token without a place (class token, register): it sees all, all see it, no distance, no radius.

    dropout_p drops weights whenever it is above 0: pass 0 outside training. All backends drop the same weights
    under the same ``torch.manual_seed``, or under the same ``dropout_seed``, which leaves torch's generator alone: a
    number, or integers [R] (or [R, b], ...) for the first leading dimensions of query [R, b, h, n, d]. Run r of a stack
    then drops what it drops alone with ``dropout_seed=int(seed[r])``, whoever is stacked beside it and however long the
    padding is. Give each layer and each step numbers of its own. float16 and bfloat16 are computed in float32.
    Gradients reach all tensors but coords, whose gradient only backend="reference" gives; a scale or distance_scale
    that is to be learned is a tensor of one number. vmap, torch.func and torch.compile: see this folder's README.
    backend: "native" (CPU, float32 and below), "triton" (GPUs, float32 and below; with the extra gpu), "chunked"
    (PyTorch, any device and dtype), "reference" (the equations as written), "auto": native or triton where they can,
    else chunked; a missing native kernel is reported once. Triton kernels are compared with chunked when first used.
    """
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    if not isinstance(phi, str) or phi not in PHI:
        raise unknown_name("phi", phi, PHI)
    check_settings(dropout_p, product_term, self_pair, return_weights)
    check_scales(scale, distance_scale)
    x = Operands(
        query, key, value, coords, theta, beta, key_embed, query_embed, value_embed, bias_scale, bias_table, bias_edges,
        mask, section,
    )  # fmt: skip
    check_shapes(x)
    check_bias(bias, x)
    heads_radius = check_radius(radius, query.shape[-3])
    check_seed(dropout_seed, query.shape[:-3])
    if coords.requires_grad and backend != "reference" and torch.is_grad_enabled():
        raise InputError(
            "coords require a gradient, which only backend='reference' gives; use it or pass coords.detach()"
        )
    asked, width = backend, max(query.shape[-1], value.shape[-1])
    if _WRITTEN_OUT.get():
        backend = "dense"  # below: neither kernels nor looks at values, which a graph cannot hold
    elif backend == "auto":
        backend = _choose(query.device, query.dtype, width)
    elif backend == "native":
        check_supported(query.device, query.dtype)
    elif backend == "triton":
        triton_backend.check_supported(query.device, query.dtype, width)
    if backend not in ("native", "dense") or return_weights or query.numel() == 0:
        check_values(x, bias)  # the kernel finds these itself, but not where there is nothing to compute
    if backend == "triton" and query.numel() == 0:
        backend = "chunked"
    dtype = query.dtype
    x = widen(x)
    if key_embed is None and query_embed is None and value_embed is None:
        x = x._replace(theta=None, beta=None)
    seeds = draw_seeds(dropout_seed) if dropout_p > 0 else None
    settings = Settings(phi, 1.0, 1.0, product_term, self_pair, dropout_p, seeds, bias, heads_radius)
    x, settings = absorb_scales(x, settings, scale, distance_scale)
    if backend == "native" and not return_weights:
        z = native(x, settings)
        return z if z.dtype is dtype else z.to(dtype)
    x = clear_padding(x)
    with torch.autocast(query.device.type, enabled=False):
        if backend == "triton" and not return_weights:
            if (reason := triton_trust.distrust(x, settings)) is None:
                return triton_backend.fused(x, settings).to(dtype)
            _refuse(reason, asked)
            backend = "chunked"
        if backend == "chunked" and not return_weights:
            return chunked(x, settings).to(dtype)
        z, weights = (reference if backend == "reference" else dense)(x, settings)
    return (z.to(dtype), weights.to(dtype)) if return_weights else z.to(dtype)


_WRITTEN_OUT: ContextVar[bool] = ContextVar("written_out", default=False)


@contextmanager
def written_out() -> Iterator[None]:
    """Within it the operator is plain tensor algebra of n x n numbers per head, for graphs that leave PyTorch."""
    token = _WRITTEN_OUT.set(True)
    try:
        yield
    finally:
        _WRITTEN_OUT.reset(token)


def _choose(device: torch.device, dtype: torch.dtype, width: int) -> str:
    if device.type == "cuda" and triton_backend.unsupported(device, dtype, width) is None:
        return "triton"
    if device.type != "cpu" or dtype == torch.float64:
        return "chunked"
    if available():
        return "native"
    _report_missing()
    return "chunked"


def _refuse(reason: str, asked: str) -> None:
    """Who asked for the Triton kernels gets an error; `auto` warns once and goes on with 'chunked'."""
    told = f"the Triton kernels are not used: {reason}. Please report what `dasmil doctor --device cuda` prints"
    if asked == "triton":
        raise BackendError(f"{told}; backend='chunked' works")
    _warn_once(f"{told}; using the slower backend 'chunked'")


@functools.cache
def _warn_once(told: str) -> None:
    warnings.warn(told, RuntimeWarning, stacklevel=4)


@functools.cache
def _report_missing() -> None:
    warnings.warn(
        f"the native attention kernel is missing: {load()}; using the slower backend 'chunked'",
        RuntimeWarning,
        stacklevel=4,
    )

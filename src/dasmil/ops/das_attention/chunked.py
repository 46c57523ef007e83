"""Distance-aware attention in pure PyTorch with memory O(n): blocks of rows, computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from dasmil.ops.das_attention.factored import Factors, Options, Pairs, fold, make_options, make_pairs, related, unfold
from dasmil.ops.das_attention.inputs import refuse_second_derivatives
from dasmil.ops.das_attention.operands import Operands, Settings
from dasmil.ops.das_attention.phi import IN_PLACE, SLOPE

BLOCK = 1 << 18
"""Pairs in a block: small enough for the caches, large enough to hide the cost of a call."""


class Memory:
    """Blocks that are used again and again: fresh ones would cost more than the arithmetic on them."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.taken: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: torch.Size) -> Tensor:
        if name not in self.taken:  # the first block is the largest
            self.taken[name] = self.like.new_empty(shape.numel())
        return self.taken[name][: shape.numel()].view(shape)


class Tile(NamedTuple):
    """The pairs of some rows with all columns: [b, rows, n]."""

    shifted: Tensor | None  # delta - theta
    f: Tensor | None  # phi
    g: Tensor | None  # m phi
    m: Tensor | None
    slope_e: Tensor | None  # the factor of g in e, that is de/dg without the square term
    weights: Tensor
    keep: Tensor | None


def _blocks(b: int, n: int) -> Iterator[tuple[slice, slice]]:
    """Batch entries are taken together when they are small, rows apart when they are large."""
    together, rows = (max(1, BLOCK // (n * n)), n) if n * n <= BLOCK else (1, max(1, BLOCK // n))
    for first in range(0, b, together):
        for row in range(0, n, rows):
            yield slice(first, min(first + together, b)), slice(row, min(row + rows, n))


def _distances(coords: Tensor, rows: slice, out: Tensor, spare: Tensor) -> Tensor:
    """Euclidean distances [b, rows, n] from differences: a matrix product would lose digits."""
    for number, axis in enumerate(coords.unbind(-1)):
        difference = torch.sub(axis[:, rows, None], axis[:, None, :], out=spare if number else out)
        if number:
            out.addcmul_(difference, difference)
        else:
            torch.mul(out, out, out=out)
    return out.sqrt_()


def _tile(x: Factors, pairs: Pairs, options: Options, batch: slice, rows: slice, memory: Memory) -> Tile:
    n = x.q.shape[1]
    shape = torch.Size((batch.stop - batch.start, rows.stop - rows.start, n))
    e = torch.bmm(x.q[batch, rows], x.k[batch].transpose(1, 2), out=memory("e", shape))
    m = related(None if pairs.section is None else pairs.section[batch], rows, n, options.self_pair, e)
    shifted = f = g = slope_e = None
    if x.theta is not None and x.beta is not None:
        shifted = _distances(pairs.coords[batch], rows, memory("shifted", shape), memory("spare", shape))
        shifted.sub_(x.theta[batch, None, None])
        f = IN_PLACE[options.phi](torch.mul(shifted, x.beta[batch, None, None], out=memory("f", shape)))
        g = f if m is None else torch.mul(f, m, out=memory("g", shape))
        if x.ga is not None and x.gc is not None:
            slope_e = torch.add(x.ga[batch, rows, None], x.gc[batch, None, :], out=memory("slope", shape))
        elif x.ga is not None:
            slope_e = x.ga[batch, rows, None].expand(shape)
        elif x.gc is not None:
            slope_e = x.gc[batch, None, :].expand(shape)
        if slope_e is not None:
            e.addcmul_(g, slope_e)
        if x.gg is not None:
            e.addcmul_(g.square(), x.gg[batch, None, None])
    if m is not None:
        if x.a is not None:
            e.addcmul_(m, x.a[batch, rows, None])
        if x.c is not None:
            e.addcmul_(m, x.c[batch, None, :])
    if pairs.mask is not None:
        e.masked_fill_(~pairs.mask[batch, None, :], float("-inf"))
    weights = torch.softmax(e, -1, out=memory("weights", shape))
    keep = None
    if options.dropout is not None:
        each = torch.arange(n, device=e.device)
        keep = options.dropout.keep(batch, each[rows], each, e)
    return Tile(shifted, f, g, m, slope_e, weights, keep)


class Chunked(torch.autograd.Function):
    """Factors -> output without b^V, sum_j w_ij g_ij, sum_j w_ij m_ij."""

    @staticmethod
    def forward(ctx: Any, options: Options, pairs: Pairs, *tensors: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        x = Factors(*tensors)  # pyright: ignore[reportArgumentType]
        b, n, _ = x.q.shape
        output = torch.empty_like(x.value)
        g_sum = x.q.new_zeros(b, n)
        m_sum = x.q.new_zeros(b, n)
        memory = Memory(x.q)
        for batch, rows in _blocks(b, n):
            t = _tile(x, pairs, options, batch, rows, memory)
            weights = t.weights if t.keep is None else t.weights.mul_(t.keep)
            torch.bmm(weights, x.value[batch], out=output[batch, rows])
            if t.m is not None:
                m_sum[batch, rows] = (weights * t.m).sum(-1)
            if t.g is not None:
                g_sum[batch, rows] = weights.mul_(t.g).sum(-1)
        ctx.options, ctx.pairs = options, pairs
        ctx.save_for_backward(output, g_sum, m_sum, *tensors)
        return output, g_sum, m_sum

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_second_derivatives()
        d_output, d_g_sum, d_m_sum = grad_outputs
        options, pairs = ctx.options, ctx.pairs
        output, g_sum, m_sum, *tensors = ctx.saved_tensors
        x = Factors(*tensors)
        b, n, _ = x.q.shape
        d_q, d_k, d_value = (torch.zeros_like(t) for t in (x.q, x.k, x.value))
        d_ga, d_gc, d_a, d_c = (x.q.new_zeros(b, n) for _ in range(4))
        d_theta, d_beta, d_gg = (torch.zeros(b, dtype=torch.float64, device=x.q.device) for _ in range(3))
        # sum_j w_ij dL/dw_ij: the part of the softmax's gradient that is common to a row.
        common = (output * d_output).sum(-1) + g_sum * d_g_sum + m_sum * d_m_sum
        memory = Memory(x.q)
        for batch, rows in _blocks(b, n):
            t = _tile(x, pairs, options, batch, rows, memory)
            shape = t.weights.shape
            d_out, d_gs, d_ms = d_output[batch, rows], d_g_sum[batch, rows, None], d_m_sum[batch, rows, None]
            d_w = torch.bmm(d_out, x.value[batch].transpose(1, 2), out=memory("e", shape))  # e is not needed any more
            if t.g is not None:
                d_w.addcmul_(t.g, d_gs)
            if t.m is not None:
                d_w.addcmul_(t.m, d_ms)
            if t.keep is None:
                weights = t.weights
            else:
                weights = t.weights * t.keep
                d_w.mul_(t.keep)
            d_value[batch].baddbmm_(weights.transpose(1, 2), d_out)
            d_e = d_w.sub_(common[batch, rows, None]).mul_(t.weights)
            torch.bmm(d_e, x.k[batch], out=d_q[batch, rows])
            d_k[batch].baddbmm_(d_e.transpose(1, 2), x.q[batch, rows])
            if t.m is not None:
                d_em = d_e * t.m
                d_a[batch, rows] = d_em.sum(-1)
                d_c[batch] += d_em.sum(-2)
            if t.g is None or t.f is None or t.shifted is None or x.beta is None:
                continue
            d_g = torch.mul(weights, d_gs, out=memory("d_g", shape))
            if t.slope_e is not None:
                d_eg = torch.mul(d_e, t.g, out=memory("spare", shape))
                d_ga[batch, rows] = d_eg.sum(-1)
                d_gc[batch] += d_eg.sum(-2)
                d_g.addcmul_(d_e, t.slope_e)
                if x.gg is not None:
                    d_gg[batch] += (d_eg * t.g).sum(-1).double().sum(-1)
                    d_g.addcmul_(d_eg, x.gg[batch, None, None], value=2)
            if t.m is not None:
                d_g.mul_(t.m)
            beta = x.beta[batch, None, None]
            d_x = d_g.mul_(SLOPE[options.phi](t.shifted, beta, t.f, memory("spare", shape)))
            # Rows in the working precision, their sums in float64: theta and beta collect n^2 terms of both signs.
            d_theta[batch] -= x.beta[batch].double() * d_x.sum(-1).double().sum(-1)
            d_beta[batch] += d_x.mul_(t.shifted).sum(-1).double().sum(-1)
        gradients = d_q, d_k, d_value, d_theta, d_beta, d_ga, d_gc, d_gg, d_a, d_c
        return None, None, *(g.to(x.q.dtype) if t is not None else None for t, g in zip(tensors, gradients))


def chunked(operands: Operands, settings: Settings) -> Tensor:
    """Output [..., h, n, o]."""
    factors = fold(operands, settings)
    if operands.n >= 256 and (missing := -factors.q.shape[2] % 16):
        # Zero columns change nothing; matrix products with 10 columns are three times slower than with 16.
        factors = factors._replace(q=pad(factors.q, (0, missing)), k=pad(factors.k, (0, missing)))
    sums: Any = Chunked.apply(make_options(operands, settings), make_pairs(operands), *factors)
    output, g_sum, m_sum = sums
    return unfold(output, g_sum, m_sum, operands, settings)

"""Distance-aware attention in pure PyTorch with memory O(n): blocks of rows, computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from dasmil.ops.das_attention.bias import bin_of, distance_bias, scale_slope
from dasmil.ops.das_attention.dropout import Dropout, column_keys
from dasmil.ops.das_attention.factored import (
    Corner,
    Factors,
    Options,
    Pairs,
    fold,
    hidden,
    make_options,
    make_pairs,
    related,
    squared_distances,
    unfold,
)
from dasmil.ops.das_attention.inputs import refuse_second_derivatives
from dasmil.ops.das_attention.neighbours import near_blocks, put_back, put_in_order
from dasmil.ops.das_attention.operands import Operands, Settings
from dasmil.ops.das_attention.phi import IN_PLACE, SLOPE

BLOCK = 1 << 18
"""Pairs in a block on a CPU: small enough for the caches, large enough to hide the cost of a call."""
SMALLEST, LARGEST = 1 << 22, 1 << 24
"""Pairs in a block on an accelerator, where a block costs about forty launches whatever its size."""
SHARE = 1 / 32
"""Of the accelerator's memory that the blocks may take."""
BUFFERS = 12
"""Numbers kept for each pair of a block, at most."""


def accelerated(device: torch.device) -> bool:
    """Whether launches and passes over memory cost more than arithmetic."""
    return device.type != "cpu"


def block_pairs(device: torch.device) -> int:
    """How many pairs are computed together on this device."""
    if not accelerated(device):
        return BLOCK
    return pairs_that_fit(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else SMALLEST


def pairs_that_fit(memory: int) -> int:
    """A power of two from SMALLEST to LARGEST."""
    fitting = max(1, int(memory * SHARE / (4 * BUFFERS)))
    return min(max(1 << (fitting.bit_length() - 1), SMALLEST), LARGEST)


class Memory:
    """Blocks that are used again and again: fresh ones would cost more than the arithmetic on them."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.taken: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: torch.Size) -> Tensor:
        if name not in self.taken or self.taken[name].numel() < shape.numel():
            self.taken[name] = self.like.new_empty(shape.numel())
        return self.taken[name][: shape.numel()].view(shape)


class Tile(NamedTuple):
    """The pairs of some rows with some columns: [b, rows, columns]."""

    delta: Tensor | None
    shifted: Tensor | None  # delta - theta
    f: Tensor | None  # phi
    g: Tensor | None  # m phi
    m: Tensor | None
    slope_e: Tensor | None  # the factor of g in e, that is de/dg without the square term
    weights: Tensor
    keep: Tensor | None


def _blocks(pairs: Pairs) -> Iterator[Corner]:
    """Batch entries are taken together when they are small, rows apart when they are large."""
    b, n, _ = pairs.coords.shape
    block = block_pairs(pairs.coords.device)
    if pairs.ids is not None:
        yield from near_blocks(pairs, block)
        return
    together, rows = (max(1, block // (n * n)), n) if n * n <= block else (1, max(1, block // n))
    for first in range(0, b, together):
        for row in range(0, n, rows):
            yield Corner(slice(first, min(first + together, b)), slice(row, min(row + rows, n)), None)


class Keys(NamedTuple):
    """What dropout needs of each instance, computed once for all blocks: [b, n]."""

    dropout: Dropout
    row: Tensor
    salt: Tensor
    column: Tensor

    def factors(self, corner: Corner, like: Tensor) -> Tensor:
        batch, rows, _ = corner
        return self.dropout.factors(self.row[batch, rows], self.salt[batch, rows], corner.of_columns(self.column), like)


def _keys(dropout: Dropout | None, pairs: Pairs) -> Keys | None:
    if dropout is None:
        return None
    b, n, _ = pairs.coords.shape
    ids = torch.arange(n, device=pairs.coords.device).expand(b, n) if pairs.ids is None else pairs.ids
    return Keys(dropout, *dropout.row_keys(slice(None), ids), column_keys(ids))


def _distances(pairs: Pairs, corner: Corner, out: Tensor, spare: Tensor) -> Tensor:
    """In `out`. Two passes fewer than by squares and root; on a CPU hypot costs more than they do."""
    rows, columns = pairs.coords[corner.batch, corner.rows], corner.of_columns(pairs.coords)
    for axis in range(rows.shape[-1]):
        row, column = rows[:, :, None, axis], columns[:, None, :, axis]
        difference = torch.sub(row, column, out=spare if axis else out)
        if axis:
            torch.hypot(out, difference, out=out)
    return out


def _tile(x: Factors, pairs: Pairs, options: Options, corner: Corner, memory: Memory, drop: Keys | None = None) -> Tile:
    n, (batch, rows, _) = x.q.shape[1], corner
    keys = corner.of_columns(x.k)
    shape = torch.Size((batch.stop - batch.start, rows.stop - rows.start, keys.shape[1]))
    e = torch.bmm(x.q[batch, rows], keys.transpose(1, 2), out=memory("e", shape))
    m = related(pairs, corner, n, options.self_pair, e)
    delta = shifted = f = g = slope_e = unseen = None
    if x.theta is not None or options.bias is not None or pairs.reach is not None:
        memories = memory("delta", shape), memory("spare", shape)
        if pairs.reach is None and accelerated(e.device):
            unseen, delta = hidden(pairs, corner, n, None), _distances(pairs, corner, *memories)
        else:
            squared = squared_distances(pairs.coords, corner, *memories)
            unseen = hidden(pairs, corner, n, squared)
            delta = squared.sqrt_()
    elif pairs.mask is not None:
        unseen = hidden(pairs, corner, n, None)
    if options.bias is not None and delta is not None:
        scale, table = (None if t is None else t[batch] for t in (x.bias_scale, x.bias_table))
        bias = distance_bias(options.bias, delta, scale, table, pairs.edges)
        e.add_(bias if m is None else bias.mul_(m))
    if x.theta is not None and x.beta is not None and delta is not None:
        shifted = torch.sub(delta, x.theta[batch, None, None], out=memory("shifted", shape) if options.bias else delta)
        f = IN_PLACE[options.phi](torch.mul(shifted, x.beta[batch, None, None], out=memory("f", shape)))
        g = f if m is None else torch.mul(f, m, out=memory("g", shape))
        if x.ga is not None and x.gc is not None:
            ga, gc = x.ga[batch, rows, None], corner.of_columns(x.gc)[:, None, :]
            slope_e = torch.add(ga, gc, out=memory("slope", shape))
        elif x.ga is not None:
            slope_e = x.ga[batch, rows, None].expand(shape)
        elif x.gc is not None:
            slope_e = corner.of_columns(x.gc)[:, None, :].expand(shape)
        if slope_e is not None:
            e.addcmul_(g, slope_e)
        if x.gg is not None:
            e.addcmul_(g.square(), x.gg[batch, None, None])
    if m is not None:
        if x.a is not None:
            e.addcmul_(m, x.a[batch, rows, None])
        if x.c is not None:
            e.addcmul_(m, corner.of_columns(x.c)[:, None, :])
    if unseen is not None:
        e.masked_fill_(unseen, float("-inf"))
    weights = torch.softmax(e, -1, out=memory("weights", shape))
    keep = None if drop is None else drop.factors(corner, e)
    return Tile(delta, shifted, f, g, m, slope_e, weights, keep)


def _add(total: Tensor, corner: Corner, part: Tensor) -> None:
    """Add [b, columns, ...] to the places of the columns in [b, n, ...]."""
    if corner.columns is None:
        total[corner.batch].add_(part)
    else:
        total[corner.batch].index_add_(1, corner.columns, part)


def _add_product(total: Tensor, corner: Corner, pairs: Tensor, rows: Tensor) -> None:
    """Add sum_i pairs_ij rows_i to the places of the columns."""
    if corner.columns is None:
        total[corner.batch].baddbmm_(pairs.transpose(1, 2), rows)
    else:
        _add(total, corner, pairs.transpose(1, 2) @ rows)


class ChunkedAttention(torch.autograd.Function):
    """Factors -> output without b^V, sum_j w_ij g_ij, sum_j w_ij m_ij."""

    @staticmethod
    def forward(ctx: Any, options: Options, pairs: Pairs, *tensors: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        x = Factors(*tensors)  # pyright: ignore[reportArgumentType]
        b, n, _ = x.q.shape
        output = torch.empty_like(x.value)
        g_sum = x.q.new_zeros(b, n)
        m_sum = x.q.new_zeros(b, n)
        memory, keys = Memory(x.q), _keys(options.dropout, pairs)
        for corner in _blocks(pairs):
            batch, rows, _ = corner
            t = _tile(x, pairs, options, corner, memory, keys)
            weights = t.weights if t.keep is None else t.weights.mul_(t.keep)
            torch.bmm(weights, corner.of_columns(x.value), out=output[batch, rows])
            if t.m is not None:
                torch.sum(weights * t.m, -1, out=m_sum[batch, rows])
            if t.g is not None:
                torch.sum(weights.mul_(t.g), -1, out=g_sum[batch, rows])
        ctx.options, ctx.pairs = options, pairs
        ctx.save_for_backward(*tensors)
        return output, g_sum, m_sum

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_second_derivatives()
        x = Factors(*ctx.saved_tensors)
        d_output, d_g_sum, d_m_sum = grad_outputs
        totals = Gradients(x)
        memory, keys = Memory(x.q), _keys(ctx.options.dropout, ctx.pairs)
        for corner in _blocks(ctx.pairs):
            t = _tile(x, ctx.pairs, ctx.options, corner, memory, keys)
            d_e, used = totals.add_softmax(t, corner, d_output, d_g_sum, d_m_sum, memory)
            totals.add_bias(t, corner, d_e, ctx.options.bias, ctx.pairs.edges)
            totals.add_phi(t, corner, d_e, used, d_g_sum, ctx.options.phi, memory)
        return None, None, *totals.found()


class Gradients:
    """The gradients of the factors, added up block after block.

    Single numbers, one for each batch entry, collect n^2 terms of both signs: the rows in the working precision, each
    in its place in `rows`, their sums in float64 at the end.
    """

    def __init__(self, x: Factors) -> None:
        self.x = x
        single = ("theta", "beta", "gg", "bias_scale")
        self.rows = {name: x.q.new_zeros(x.q.shape[:2]) for name in single if getattr(x, name) is not None}
        self.d: dict[str, Tensor] = {
            name: torch.zeros_like(t, dtype=torch.float64 if name == "bias_table" else t.dtype)
            for name, t in zip(x._fields, x)
            if t is not None and name not in single
        }

    def found(self) -> list[Tensor | None]:
        single = {name: rows.sum(-1, dtype=torch.float64) for name, rows in self.rows.items()}
        if self.x.beta is not None:
            single["theta"].mul_(self.x.beta.double()).neg_()
        totals = self.d | single
        return [None if t is None else totals[name].to(t.dtype) for name, t in zip(self.x._fields, self.x)]

    def add_softmax(
        self,
        t: Tile,
        corner: Corner,
        d_output: Tensor,
        d_g_sum: Tensor,
        d_m_sum: Tensor,
        memory: Memory,
    ) -> tuple[Tensor, Tensor]:
        """Gradients of q, k, value, a and c; returns dL/de and the weights after dropout."""
        x, d, (batch, rows, _) = self.x, self.d, corner
        d_out, keys = d_output[batch, rows], corner.of_columns(x.k)
        # e is not needed any more
        d_w = torch.bmm(d_out, corner.of_columns(x.value).transpose(1, 2), out=memory("e", t.weights.shape))
        if t.g is not None:
            d_w.addcmul_(t.g, d_g_sum[batch, rows, None])
        if t.m is not None:
            d_w.addcmul_(t.m, d_m_sum[batch, rows, None])
        used = t.weights
        if t.keep is not None:
            used = t.weights * t.keep
            d_w.mul_(t.keep)
        _add_product(d["value"], corner, used, d_out)
        # The row's common part from these very numbers: where the softmax saturates, the difference is what counts.
        d_e = torch.ops.aten._softmax_backward_data(d_w, t.weights, -1, d_w.dtype)
        torch.bmm(d_e, keys, out=d["q"][batch, rows])
        _add_product(d["k"], corner, d_e, x.q[batch, rows])
        if t.m is not None and (x.a is not None or x.c is not None):
            d_em = d_e * t.m
            if x.a is not None:
                torch.sum(d_em, -1, out=d["a"][batch, rows])
            if x.c is not None:
                _add(d["c"], corner, d_em.sum(-2))
        return d_e, used

    def add_bias(self, t: Tile, corner: Corner, d_e: Tensor, bias: str | None, edges: Tensor | None) -> None:
        if bias is None or t.delta is None:
            return
        d_bias = d_e if t.m is None else d_e * t.m
        if edges is not None:
            table = self.d["bias_table"][corner.batch]
            table.scatter_add_(1, bin_of(t.delta, edges).flatten(1), d_bias.flatten(1).double())
        elif self.x.bias_scale is not None:
            slope = scale_slope(bias, t.delta, self.x.bias_scale[corner.batch, None, None])
            torch.sum(slope.mul_(d_bias), -1, out=self.rows["bias_scale"][corner.batch, corner.rows])

    def add_phi(
        self, t: Tile, corner: Corner, d_e: Tensor, used: Tensor, d_g_sum: Tensor, phi: str, memory: Memory
    ) -> None:
        """Gradients of ga, gc, gg, theta and beta."""
        x, d, (batch, rows, _), shape = self.x, self.d, corner, d_e.shape
        if t.g is None or t.f is None or t.shifted is None or x.beta is None:
            return
        d_g = torch.mul(used, d_g_sum[batch, rows, None], out=memory("d_g", shape))
        if t.slope_e is not None:
            d_eg = torch.mul(d_e, t.g, out=memory("spare", shape))
            if x.ga is not None:
                torch.sum(d_eg, -1, out=d["ga"][batch, rows])
            if x.gc is not None:
                _add(d["gc"], corner, d_eg.sum(-2))
            d_g.addcmul_(d_e, t.slope_e)
            if x.gg is not None:
                torch.sum(d_eg * t.g, -1, out=self.rows["gg"][batch, rows])
                d_g.addcmul_(d_eg, x.gg[batch, None, None], value=2)
        if t.m is not None:
            d_g.mul_(t.m)
        if phi == "sigmoid":
            d_x = torch.ops.aten.sigmoid_backward.grad_input(d_g, t.f, grad_input=d_g)
        else:
            d_x = d_g.mul_(SLOPE[phi](t.shifted, x.beta[batch, None, None], t.f, memory("spare", shape)))
        torch.sum(d_x, -1, out=self.rows["theta"][batch, rows])
        torch.sum(d_x.mul_(t.shifted), -1, out=self.rows["beta"][batch, rows])


def chunked(operands: Operands, settings: Settings) -> Tensor:
    """Output [..., h, n, o]."""
    factors, pairs = fold(operands, settings), make_pairs(operands, settings)
    if operands.n >= 256 and (missing := -factors.q.shape[2] % 16):
        # Zero columns change nothing; matrix products with 10 columns are three times slower than with 16.
        factors = factors._replace(q=pad(factors.q, (0, missing)), k=pad(factors.k, (0, missing)))
    if settings.radius is not None and operands.n**2 > block_pairs(operands.query.device):
        factors, pairs = put_in_order(factors, pairs)
    sums: Any = ChunkedAttention.apply(make_options(operands, settings), pairs, *factors)
    if pairs.ids is not None:
        sums = [put_back(total, pairs.ids) for total in sums]
    output, g_sum, m_sum = sums
    return unfold(output, g_sum, m_sum, operands, settings)

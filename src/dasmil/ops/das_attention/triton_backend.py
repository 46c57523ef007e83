"""Distance-aware attention on GPUs: the host side of `triton_kernels.py`."""

from __future__ import annotations

import functools
import importlib.metadata
import math
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from dasmil.errors import BackendError
from dasmil.ops.das_attention.bias import ROOM
from dasmil.ops.das_attention.dropout import column_keys
from dasmil.ops.das_attention.factored import Factors, Options, Pairs, fold, make_options, make_pairs, unfold
from dasmil.ops.das_attention.inputs import refuse_second_derivatives
from dasmil.ops.das_attention.neighbours import near_stretches, put_back, put_in_order
from dasmil.ops.das_attention.operands import Operands, Settings

OLDEST = (3, 5)
"""The oldest Triton whose interpreter runs the kernels."""
WIDEST = 128
"""The largest d and o: wider ones do not fit into registers."""
STRETCH = 64
"""Instances that are kept or left out together under a radius; every block divides it."""
WORTH_ORDERING = 512
"""Smaller bags have hardly a stretch outside the radius: they are computed whole."""
DOTS = ("tf32x3", "ieee", "tf32", "bf16")
LN2 = math.log(2)


class Blocks(NamedTuple):
    """Rows and columns of a tile, warps that share it, and stages of loads under way."""

    rows: int
    columns: int
    warps: int = 4
    stages: int = 2


BLOCKS: dict[str, dict[int, Blocks]] = {
    "forward": {16: Blocks(64, 32), 32: Blocks(64, 32), 64: Blocks(64, 16), WIDEST: Blocks(32, 16)},
    "columns": {16: Blocks(32, 64), 32: Blocks(16, 64), 64: Blocks(32, 32), WIDEST: Blocks(16, 16)},
    "rows": {16: Blocks(64, 32), 32: Blocks(64, 16), 64: Blocks(64, 16), WIDEST: Blocks(32, 16)},
}
"""By kernel and by the larger of d and o: up to 64 none of these spills registers on sm_80, sm_90 and gfx942."""


def kernels() -> Any:
    """The module of the kernels: Triton is imported only when they are used."""
    from dasmil.ops.das_attention import triton_kernels

    return triton_kernels


@functools.cache
def missing() -> str | None:
    """Why the kernels cannot be used, whatever the device; None where they can."""
    try:
        found = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "triton is not installed; pip install 'dasmil[gpu]'"
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        return f"triton is {found}, expected {'.'.join(map(str, OLDEST))} or newer; it comes with a newer torch"
    return None


def interpreted() -> bool:
    """Whether Triton interprets kernels on the CPU, as tests do."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def unsupported(device: torch.device, dtype: torch.dtype, width: int) -> str | None:
    """Why the kernels cannot compute this; None where they can."""
    if reason := missing():
        return reason
    if dtype == torch.float64:
        return "the Triton kernels compute in float32, the tensors are float64"
    if width > WIDEST:
        return f"the Triton kernels take at most {WIDEST} numbers an instance, the tensors have {width}"
    if interpreted():
        return None
    if device.type != "cuda":
        return f"the Triton kernels run on GPUs, the tensors are on {device}"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        return f"the Triton kernels need an NVIDIA GPU of compute capability 8.0 or newer, {device} is older"
    return None


def check_supported(device: torch.device, dtype: torch.dtype, width: int) -> None:
    if reason := unsupported(device, dtype, width):
        raise BackendError(f"{reason}; or use backend='auto' or 'chunked'")


def dot_precision() -> str:
    """How products are computed: as exact as float32, unless `torch.set_float32_matmul_precision` allows less."""
    asked = torch.get_float32_matmul_precision()
    if asked != "highest":
        return {"high": "tf32", "medium": "bf16"}[asked]
    return "tf32x3" if torch.version.hip is None else "ieee"


class PaddedTensors(NamedTuple):
    """What all three kernels take, in the order in which they take it."""

    q: Tensor
    k: Tensor
    v: Tensor
    floats: Tensor
    ints: Tensor
    items: Tensor
    table: Tensor
    edges: Tensor
    starts: Tensor
    near: Tensor


class Call(NamedTuple):
    """Numbers and flags of the kernels."""

    numbers: tuple[int | float, ...]  # n, length, bins, threshold, inverse
    flags: dict[str, Any]
    dot: str
    width: int

    @property
    def length(self) -> int:
        return int(self.numbers[1])

    def launch(self, name: str, items: int, tensors: tuple[Tensor, ...], **more: Any) -> None:
        blocks = BLOCKS[name][self.width]
        outer = blocks.columns if name == "columns" else blocks.rows
        precision = "ieee" if self.dot == "bf16" else self.dot
        with torch.cuda.device_of(tensors[0]):
            getattr(kernels(), name)[(items * (self.length // outer),)](
                *tensors, *self.numbers, ROWS=blocks.rows, COLUMNS=blocks.columns, STRETCH=STRETCH, DOT=precision,
                **self.flags, **more, num_warps=blocks.warps, num_stages=blocks.stages, enable_fp_fusion=True,
            )  # fmt: skip


def _width(size: int) -> int:
    """A product on tensor cores has at least 16 columns, and Triton wants powers of two."""
    return max(16, 1 << (size - 1).bit_length())


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _prepare(x: Factors, pairs: Pairs, options: Options, dot: str) -> tuple[PaddedTensors, Call]:
    b, n, _ = x.q.shape
    axes = pairs.coords.shape[2]
    length = -(-n // STRETCH) * STRETCH
    more, wide = length - n, torch.bfloat16 if dot == "bf16" else torch.float32
    q, k, v = (pad(t, (0, _width(t.shape[2]) - t.shape[2], 0, more)).to(wide).contiguous() for t in (x.q, x.k, x.value))
    place = pairs.coords.movedim(2, 1)
    nothing = x.q.new_zeros(b, 1, n)
    planes = [place, nothing] if axes == 2 else [place]
    planes += [nothing if t is None else t[:, None] for t in (x.ga, x.gc, x.a, x.c)]
    floats = pad(torch.cat(planes, 1), (0, more))
    none = x.q.new_zeros(b)
    items = torch.stack(
        [none if t is None else t for t in (x.theta, x.beta, x.gg, x.bias_scale, pairs.reach)] + [none] * 3, 1
    )
    bins, table, edges = 0, floats, floats
    if x.bias_table is not None and pairs.edges is not None:
        bins, table = x.bias_table.shape[1], (x.bias_table / LN2).contiguous()
        edges = pad(pad(pairs.edges * (1 - ROOM), (1, 0), value=-math.inf), (0, 1), value=math.inf).contiguous()
    starts = near = q
    if pairs.ids is not None:
        starts, near = near_stretches(pairs, STRETCH)
    threshold, inverse = 0, 1.0
    if options.dropout is not None:
        threshold, inverse = options.dropout.threshold, 1 / (1 - options.dropout.p)
    flags = {
        "D": q.shape[2], "W": v.shape[2], "PHI": "none" if x.theta is None else options.phi,
        "BIAS": options.bias or "none", "AXES": axes, "SLOPES": x.ga is not None or x.gc is not None,
        "PARTIAL": pairs.section is not None or not options.self_pair, "PRODUCT": x.gg is not None,
        "SECTION": pairs.section is not None, "SELF": options.self_pair, "RADIUS": pairs.reach is not None,
        "MASK": pairs.mask is not None, "LISTS": pairs.ids is not None, "DROPOUT": options.dropout is not None,
    }  # fmt: skip
    ints = _whole_numbers(pairs, options, more)
    padded = PaddedTensors(q, k, v, floats, ints, items, table, edges, starts, near)
    return padded, Call((n, length, bins, threshold, inverse), flags, dot, max(q.shape[2], v.shape[2]))


def _whole_numbers(pairs: Pairs, options: Options, more: int) -> Tensor:
    """Section, mask and keys of dropout as int32 [b, 5, length]; one number where none is used."""
    b, n, _ = pairs.coords.shape
    device = pairs.coords.device
    if pairs.mask is None and pairs.section is None and options.dropout is None:
        return torch.zeros(1, dtype=torch.int32, device=device)
    found = torch.zeros(b, 5, n + more, dtype=torch.int32, device=device)
    if pairs.section is not None:
        found[:, 0, :n] = pairs.section  # numbers beyond 32 bits are refused before
    if pairs.mask is not None:
        found[:, 1, :n] = pairs.mask
    if options.dropout is not None:
        ids = torch.arange(n, device=device).expand(b, n) if pairs.ids is None else pairs.ids
        for plane, key in enumerate((*options.dropout.row_keys(slice(None), ids), column_keys(ids)), 2):
            found[:, plane, :n] = torch.where(key > 2**31 - 1, key - 2**32, key)
    return found


class TritonAttention(torch.autograd.Function):
    """Factors in units of ln 2 -> output without b^V, sum_j w_ij g_ij, sum_j w_ij m_ij."""

    @staticmethod
    def forward(
        ctx: Any, options: Options, pairs: Pairs, dot: str, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = Factors(*tensors)  # pyright: ignore[reportArgumentType]
        b, n, _ = x.q.shape
        padded, call = _prepare(x, pairs, options, dot)
        out = _empty(x.q, b, call.length, padded.v.shape[2])
        stats = _empty(x.q, b, 4, call.length)
        call.launch("forward", b, (*padded, out, stats))
        ctx.call, ctx.shapes = call, [None if t is None else t.shape for t in tensors]
        ctx.save_for_backward(*padded, out, stats)
        return out[:, :n, : x.value.shape[2]], stats[:, 2, :n], stats[:, 3, :n]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_second_derivatives()
        *saved, out, stats = ctx.saved_tensors
        padded, call = PaddedTensors(*saved), ctx.call
        b, more = padded.items.shape[0], call.length - grad_outputs[0].shape[1]
        d_output, d_g_sum, d_m_sum = grad_outputs
        wide = pad(d_output, (0, out.shape[2] - d_output.shape[2], 0, more)) * (LN2 / stats[:, 1, :, None])
        d_sums = [pad(t, (0, more)) * (LN2 / stats[:, 1]) for t in (d_g_sum, d_m_sum)]
        common = (wide * out).sum(-1) + d_sums[0] * stats[:, 2] + d_sums[1] * stats[:, 3]
        turned = torch.stack([stats[:, 0], common, *d_sums], 1)
        given = (*padded, wide.to(padded.q.dtype).contiguous(), turned)
        d_k, d_v = _empty(wide, *padded.k.shape), _empty(wide, *padded.v.shape)
        d_columns, d_q, d_rows = (
            _empty(wide, b, 2, call.length),
            _empty(wide, *padded.q.shape),
            _empty(wide, b, 6, call.length),
        )
        call.launch("columns", b, (*given, d_k, d_v, d_columns))
        bins = _width(call.numbers[2]) if call.flags["BIAS"] == "bins" else 1
        d_table = _empty(wide, b, call.length, bins)
        call.launch("rows", b, (*given, d_q, d_rows, d_table), BINS=bins)
        single = d_rows[:, 2:].sum(-1, dtype=torch.float64)  # n^2 terms of both signs
        found: dict[str, Tensor] = {
            "q": d_q, "k": d_k, "value": d_v, "ga": d_rows[:, 0], "a": d_rows[:, 1], "gc": d_columns[:, 0],
            "c": d_columns[:, 1], "theta": -single[:, 0] * padded.items[:, 1].double(), "beta": single[:, 1],
            "gg": single[:, 2], "bias_scale": single[:, 3], "bias_table": d_table.sum(1, dtype=torch.float64),
        }  # fmt: skip
        gradients = (
            None if shape is None else found[name][tuple(slice(0, size) for size in shape)].float()
            for name, shape in zip(Factors._fields, ctx.shapes)
        )
        return None, None, None, *gradients


def fused(operands: Operands, settings: Settings, dot: str | None = None) -> Tensor:
    """Output [..., h, n, o]."""
    if operands.mask is not None and not (operands.query.sum() + operands.key.sum()).isfinite():
        hidden = ~operands.mask[..., None, :, None]  # what is behind the mask is multiplied by 0: no NaN may be there
        query, key = operands.query.masked_fill(hidden, 0), operands.key.masked_fill(hidden, 0)
        operands = operands._replace(query=query, key=key)
    factors = fold(operands, settings._replace(scale=settings.scale / LN2))
    pairs = make_pairs(operands, settings)
    if settings.radius is not None and operands.n >= WORTH_ORDERING:
        factors, pairs = put_in_order(factors, pairs)
    sums: Any = TritonAttention.apply(make_options(operands, settings), pairs, dot or dot_precision(), *factors)
    if pairs.ids is not None:
        sums = [put_back(total, pairs.ids) for total in sums]
    output, g_sum, m_sum = sums
    return unfold(output, g_sum, m_sum, operands, settings)

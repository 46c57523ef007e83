"""The fused CPU kernel: C++ behind a plain C interface, built when the package is installed (see kernel/)."""

from __future__ import annotations

import ctypes
import functools
import math
import platform
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dasmil.errors import BackendError
from dasmil.ops import library
from dasmil.ops.das_attention.bias import BIASES
from dasmil.ops.das_attention.inputs import (
    bad_coords,
    bad_length,
    bad_mask,
    bad_section,
    large_section,
    refuse_second_derivatives,
)
from dasmil.ops.das_attention.operands import LARGE, Operands, Settings, clear_padding
from dasmil.ops.das_attention.order import space_filling_order
from dasmil.ops.das_attention.phi import PHI
from dasmil.ops.das_attention.saturated import exact_gradients, saturates


class _Problem(ctypes.Structure):
    """das_problem of kernel/das_attention.h."""

    _fields_ = [
        (name, kind)
        for kind, names in (
            (
                ctypes.c_int64,
                "bags heads n d o axes phi bias bins self_pair product_term threads isa coords_step mask_step "
                "section_step theta_step beta_step key_embed_step query_embed_step value_embed_step bias_scale_step "
                "bias_table_step order_step seed_count",
            ),
            (ctypes.c_double, "scale distance_scale dropout"),
            (
                ctypes.c_void_p,
                "query key value coords theta beta key_embed query_embed value_embed bias_scale bias_table bias_edges "
                "mask section seeds reach order out shift share g_sum m_sum d_out d_query d_key d_value d_theta d_beta "
                "d_key_embed d_query_embed d_value_embed d_bias_scale d_bias_table scratch",
            ),
        )
        for name in names.split()
    ]


@functools.cache
def load() -> ctypes.CDLL | str:
    """The kernel, or the reason why there is none."""
    loaded = library.load(Path(__file__).parent, "das", _Problem)
    if not isinstance(loaded, str) and not hasattr(loaded, "das_has"):
        return "it was built from other sources: run pip install again"
    if not isinstance(loaded, str):
        loaded.das_scratch.argtypes, loaded.das_scratch.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int64
    return loaded


def available() -> bool:
    return not isinstance(load(), str)


def has_instructions(isa: str) -> bool:
    """Whether the kernel was built for this instruction set and the CPU has it."""
    loaded = load()
    return not isinstance(loaded, str) and bool(loaded.das_has(ctypes.c_int64(_ISA_CODES[isa])))


def told() -> str:
    """In words: the instruction set that runs here, and whether on several threads; or why there is no kernel."""
    loaded = load()
    if isinstance(loaded, str):
        return f"missing: {loaded}"
    best = next((isa for isa in ("avx512", "avx2") if has_instructions(isa)), f"portable ({platform.machine()})")
    return f"{best}, {'OpenMP' if loaded.das_has_openmp() else 'one thread: built without OpenMP'}"


def _library() -> ctypes.CDLL:
    loaded = load()
    if isinstance(loaded, str):
        raise BackendError(
            f"the native kernel is missing: {loaded}. "
            "Install a C++ compiler and run pip install again, or use backend='auto' or 'chunked'"
        )
    return loaded


def check_supported(device: torch.device, dtype: torch.dtype) -> None:
    """The kernel computes in float32 on the CPU, and nothing else."""
    if device.type != "cpu":
        raise BackendError(f"the native kernel runs on the CPU, the tensors are on {device}; use backend='chunked'")
    if dtype == torch.float64:
        raise BackendError("the native kernel computes in float32, the tensors are float64; use backend='chunked'")
    _library()


def _scratch(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8)


def _empty(*shape: int) -> Tensor:
    return torch.empty(shape)


def _empty_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor)


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _rows(kept: Tensor) -> list[int]:
    """The addresses of the rows of a contiguous tensor."""
    first, step = kept.data_ptr(), kept.stride(0) * kept.element_size()
    return [first + row * step for row in range(kept.shape[0])]


class Neighbourhood(NamedTuple):
    """What a radius needs beside the operands: the largest squared distance of each head, and an order of the bag."""

    reach: Tensor | None = None
    order: Tensor | None = None


def _neighbourhood(x: Operands, settings: Settings) -> Neighbourhood:
    if settings.radius is None:
        return Neighbourhood()
    reach = torch.tensor(settings.reach(), dtype=torch.float64)
    if x.n < WORTH_ORDERING:
        return Neighbourhood(reach)
    shared = x.coords
    for other in (x.mask, x.section):
        if other is not None and other.ndim > shared.ndim - 1:
            shared = shared.expand(other.shape[0], *shared.shape[-2:])
    return Neighbourhood(reach, space_filling_order(shared, x.mask, x.section, LEAF))


LEAF = 16
"""Instances that choose together whom they see; base.h has the same number."""
WORTH_ORDERING = 512
"""Smaller bags have hardly a block outside the radius: they are computed whole."""


def _describe(settings: Settings, x: Operands, near: Neighbourhood) -> _Problem:
    """Sizes and pointers of contiguous float32 tensors; a tensor without batch dimension is shared by all bags."""
    bags, heads, n, d = x.query.shape
    o = x.value.shape[3]

    def step(tensor: Tensor | None, own: int) -> int:
        """Elements from one bag to the next."""
        return 0 if tensor is None or tensor.ndim == own else tensor.stride(0)

    return _Problem(
        bags, heads, n, d, o, x.coords.shape[-1], _PHI_CODES[settings.phi], _BIAS_CODES[settings.bias],
        0 if x.bias_table is None else x.bias_table.shape[-1],
        settings.self_pair, settings.product_term, torch.get_num_threads(), _ISA_CODES[settings.isa],
        step(x.coords, 2), step(x.mask, 1), step(x.section, 1), step(x.theta, 1), step(x.beta, 1),
        step(x.key_embed, 3), step(x.query_embed, 3), step(x.value_embed, 3),
        step(x.bias_scale, 1), step(x.bias_table, 2), step(near.order, 1),
        0 if settings.seeds is None else settings.seeds.numel(),
        settings.scale, settings.distance_scale, settings.dropout_p,
        *[None if t is None else t.data_ptr() for t in (*x, settings.seeds, *near)],
    )  # fmt: skip


_ISA_CODES = {name: code for code, name in enumerate(("auto", "portable", "avx2", "avx512"))}
_BIAS_CODES = {name: code for code, name in enumerate((None, "linear", "gaussian", "cauchy", "bins"))}
assert set(_BIAS_CODES) == {None, *BIASES}
_PHI_CODES = {name: code for code, name in enumerate(("sigmoid", "identity", "exponential", "gaussian"))}
assert set(_PHI_CODES) == set(PHI)


def _run(problem: _Problem, backward: bool) -> None:
    kernel = _library()
    address = ctypes.addressof(problem)
    scratch = _scratch(kernel.das_scratch(address, backward))
    problem.scratch = scratch.data_ptr()
    status = (kernel.das_backward if backward else kernel.das_forward)(address)
    if status == 1:
        raise bad_coords()
    if status == 2:
        raise bad_mask()
    if status == 3:
        raise large_section()
    if status == 4:
        raise bad_section()
    if status == 5:
        raise bad_length()


class NativeAttention(torch.autograd.Function):
    """Operands with one batch dimension -> [b, h, n, o]."""

    @staticmethod
    def forward(ctx: Any, settings: Settings, *tensors: Tensor | None) -> Tensor:
        x = Operands(*[None if t is None else t.contiguous() for t in tensors])  # pyright: ignore[reportArgumentType]
        if x.mask is not None and not sum(map(torch.linalg.vector_norm, x[:3])) < LARGE:  # so NaN, too
            x = clear_padding(x)
        near = _neighbourhood(x, settings)
        problem = _describe(settings, x, near)
        out = _empty_like(x.value)
        kept = _empty(4, *x.value.shape[:3])
        problem.out = out.data_ptr()
        problem.shift, problem.share, problem.g_sum, problem.m_sum = _rows(kept)
        _run(problem, False)
        ctx.settings, ctx.near = settings, near
        ctx.save_for_backward(out, kept, *x)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_second_derivatives()
        d_out = grad_outputs[0].contiguous()
        out, kept, *tensors = ctx.saved_tensors
        x = Operands(*tensors)
        if saturates(x, ctx.settings):
            return None, *exact_gradients(x, ctx.settings, d_out, ctx.needs_input_grad[1:])
        problem = _describe(ctx.settings, x, ctx.near)
        problem.out, problem.d_out = out.data_ptr(), d_out.data_ptr()
        problem.shift, problem.share, problem.g_sum, problem.m_sum = _rows(kept)
        gradients: dict[str, Tensor] = {name: _empty_like(getattr(x, name)) for name in ("query", "key", "value")}
        for name, tail in _PARAMETERS:  # one for each bag, even where the bags share the parameter
            wanted = ctx.needs_input_grad[1 + Operands._fields.index(name)] or not name.startswith("bias")
            if wanted and (t := getattr(x, name)) is not None:
                gradients[name] = _empty(*x.query.shape[:2], *t.shape[t.ndim - tail :])
        for name, gradient in gradients.items():
            setattr(problem, f"d_{name}", gradient.data_ptr())
        _run(problem, True)
        for name, _ in _PARAMETERS:
            if name in gradients and gradients[name].ndim > getattr(x, name).ndim:
                gradients[name] = gradients[name].sum(0)
        return None, *map(gradients.get, Operands._fields)


# The parameters of the heads, and how many dimensions each has after that of the heads.
_PARAMETERS = (
    ("theta", 0), ("beta", 0), ("key_embed", 2), ("query_embed", 2), ("value_embed", 2), ("bias_scale", 0),
    ("bias_table", 1),
)  # fmt: skip


def native(x: Operands, settings: Settings) -> Tensor:
    """Output [..., h, n, o]; arguments as checked by the operator."""
    batch, heads, n = x.query.shape[:-3], x.query.shape[-3], x.query.shape[-2]
    flat = len(batch) == 1
    if not flat:
        query, key, value = (t.reshape(math.prod(batch), *t.shape[-3:]) for t in (x.query, x.key, x.value))
        x = x._replace(query=query, key=key, value=value)

    def one_batch(t: Tensor | None, tail: int, size: int) -> Tensor | None:
        """With one batch dimension, or with none where all bags share it."""
        if t is None or (t.shape[t.ndim - tail] == size and (t.ndim == tail or (flat and t.shape[:-tail] == batch))):
            return t
        own = t.shape[t.ndim - tail + 1 :]
        return t.expand(*batch, size, *own).reshape(math.prod(batch), size, *own)

    rest = {name: one_batch(getattr(x, name), tail + 1, heads) for name, tail in _PARAMETERS}
    coords, mask, section = one_batch(x.coords, 2, n), one_batch(x.mask, 1, n), one_batch(x.section, 1, n)
    if section is not None and section.dtype != torch.int64:
        section = section.to(torch.int64)
    out = NativeAttention.apply(settings, *x._replace(coords=coords, mask=mask, section=section, **rest))
    assert isinstance(out, Tensor)
    return out if flat else out.reshape(*batch, *out.shape[1:])

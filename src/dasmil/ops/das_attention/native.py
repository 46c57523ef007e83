"""The fused CPU kernel: C++ behind a plain C interface, built when the package is installed (see kernel/)."""

from __future__ import annotations

import ctypes
import functools
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dasmil.errors import BackendError, InputError
from dasmil.ops.das_attention.inputs import bad_coords, bad_mask, refuse_second_derivatives
from dasmil.ops.das_attention.phi import PHI


class _Problem(ctypes.Structure):
    """das_problem of kernel/das_attention.h."""

    _fields_ = [
        (name, kind)
        for kind, names in (
            (
                ctypes.c_int64,
                "bags heads n d o axes phi self_pair product_term threads isa coords_step mask_step section_step "
                "theta_step beta_step key_embed_step query_embed_step value_embed_step seed",
            ),
            (ctypes.c_double, "scale distance_scale dropout"),
            (
                ctypes.c_void_p,
                "query key value coords theta beta key_embed query_embed value_embed mask section out lse g_sum m_sum "
                "d_out d_query d_key d_value d_theta d_beta d_key_embed d_query_embed d_value_embed scratch",
            ),
        )
        for name in names.split()
    ]


class Settings(NamedTuple):
    """What is not a tensor. isa: "auto", or "portable" to leave the CPU's special instructions unused."""

    phi: str
    scale: float
    distance_scale: float
    product_term: bool
    self_pair: bool
    dropout_p: float
    seed: int
    isa: str = "auto"


def library_path() -> Path | None:
    """The compiled kernel, or None when the package was installed without a compiler."""
    return next(iter(sorted(Path(__file__).parent.glob("_kernel*.*"))), None)


@functools.cache
def load() -> ctypes.CDLL | str:
    """The kernel, or the reason why there is none."""
    path = library_path()
    if path is None:
        return "it was not built when dasmil was installed (no C++ compiler?)"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return f"{path.name} cannot be loaded: {error}"
    library.das_problem_bytes.restype = ctypes.c_int64
    if library.das_problem_bytes() != ctypes.sizeof(_Problem):
        return f"{path.name} was built from other sources"
    for function in (library.das_forward, library.das_backward):
        function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_int
    library.das_scratch.argtypes, library.das_scratch.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int64
    return library


def available() -> bool:
    return not isinstance(load(), str)


def _library() -> ctypes.CDLL:
    library = load()
    if isinstance(library, str):
        raise BackendError(
            f"the native kernel is missing: {library}. "
            "Install a C++ compiler and run pip install again, or use backend='auto' or 'chunked'"
        )
    return library


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


def _describe(settings: Settings, tensors: tuple[Tensor | None, ...]) -> _Problem:
    """Sizes and pointers of contiguous float32 tensors; a tensor without batch dimension is shared by all bags."""
    query, _, value, coords, theta, beta, key_embed, query_embed, value_embed, mask, section = tensors
    assert query is not None
    assert value is not None
    assert coords is not None
    bags, heads, n, d = query.shape
    o = value.shape[3]
    return _Problem(
        bags, heads, n, d, o, coords.shape[-1],
        _PHI_CODES[settings.phi], settings.self_pair, settings.product_term, torch.get_num_threads(),
        settings.isa != "auto",
        n * coords.shape[-1] if coords.ndim == 3 else 0,
        n if mask is not None and mask.ndim == 2 else 0,
        n if section is not None and section.ndim == 2 else 0,
        heads if theta is not None and theta.ndim == 2 else 0,
        heads if beta is not None and beta.ndim == 2 else 0,
        heads * 2 * d if key_embed is not None and key_embed.ndim == 4 else 0,
        heads * 2 * d if query_embed is not None and query_embed.ndim == 4 else 0,
        heads * 2 * o if value_embed is not None and value_embed.ndim == 4 else 0,
        settings.seed, settings.scale, settings.distance_scale, settings.dropout_p,
        *[None if t is None else t.data_ptr() for t in tensors],
    )  # fmt: skip


_PHI_CODES = {name: code for code, name in enumerate(("sigmoid", "identity", "exponential", "gaussian"))}
assert set(_PHI_CODES) == set(PHI)


def _run(problem: _Problem, backward: bool) -> None:
    library = _library()
    address = ctypes.addressof(problem)
    scratch = _scratch(library.das_scratch(address, backward))
    problem.scratch = scratch.data_ptr()
    status = (library.das_backward if backward else library.das_forward)(address)
    if status == 1:
        raise bad_coords()
    if status == 2:
        raise bad_mask()
    if status == 3:
        raise InputError("section holds numbers beyond 32 bits; number the sections 0, 1, 2, ...")


class Native(torch.autograd.Function):
    """query, key [b, h, n, d], value [b, h, n, o] and what shapes their attention -> [b, h, n, o]."""

    @staticmethod
    def forward(ctx: Any, settings: Settings, *tensors: Tensor | None) -> Tensor:
        tensors = tuple([None if t is None else t.contiguous() for t in tensors])
        problem = _describe(settings, tensors)
        value = tensors[2]
        assert value is not None
        out = _empty_like(value)
        kept = _empty(3, *value.shape[:3])
        problem.out = out.data_ptr()
        problem.lse, problem.g_sum, problem.m_sum = _rows(kept)
        _run(problem, False)
        ctx.settings = settings
        ctx.save_for_backward(out, kept, *tensors)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_second_derivatives()
        d_out = grad_outputs[0].contiguous()
        out, kept, *tensors = ctx.saved_tensors
        problem = _describe(ctx.settings, tuple(tensors))
        problem.out, problem.d_out = out.data_ptr(), d_out.data_ptr()
        problem.lse, problem.g_sum, problem.m_sum = _rows(kept)
        query, key, value, _, *parameters = tensors[:9]
        bags, heads = query.shape[:2]
        d_query, d_key, d_value = _empty_like(query), _empty_like(key), _empty_like(value)
        problem.d_query, problem.d_key, problem.d_value = d_query.data_ptr(), d_key.data_ptr(), d_value.data_ptr()
        gradients = [
            None if t is None else _empty(bags, heads, *t.shape[t.ndim - tail :])
            for t, tail in zip(parameters, (0, 0, 2, 2, 2))
        ]
        problem.d_theta, problem.d_beta = _pointer(gradients[0]), _pointer(gradients[1])
        problem.d_key_embed, problem.d_query_embed = _pointer(gradients[2]), _pointer(gradients[3])
        problem.d_value_embed = _pointer(gradients[4])
        _run(problem, True)
        shared = [g if g is None or g.ndim == t.ndim else g.sum(0) for g, t in zip(gradients, parameters)]
        return None, d_query, d_key, d_value, None, *shared, None, None


def native(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    coords: Tensor,
    theta: Tensor | None,
    beta: Tensor | None,
    key_embed: Tensor | None,
    query_embed: Tensor | None,
    value_embed: Tensor | None,
    mask: Tensor | None,
    section: Tensor | None,
    settings: Settings,
) -> Tensor:
    """Output [..., h, n, o]; arguments as checked by the operator."""
    batch, heads, n = query.shape[:-3], query.shape[-3], query.shape[-2]
    flat = len(batch) == 1
    if not flat:
        query, key, value = (t.reshape(math.prod(batch), *t.shape[-3:]) for t in (query, key, value))
    arguments = [
        t if t is None or (t.shape[t.ndim - tail] == size and (t.ndim == tail or (flat and t.shape[:-tail] == batch)))
        else t.expand(*batch, size, *t.shape[t.ndim - tail + 1 :]).reshape(-1, size, *t.shape[t.ndim - tail + 1 :])
        for t, tail, size in (
            (coords, 2, n), (theta, 1, heads), (beta, 1, heads), (key_embed, 3, heads), (query_embed, 3, heads),
            (value_embed, 3, heads), (mask, 1, n), (section, 1, n),
        )
    ]  # fmt: skip
    if section is not None and arguments[7] is not None and section.dtype != torch.int64:
        arguments[7] = arguments[7].to(torch.int64)
    out = Native.apply(settings, query, key, value, *arguments)
    return out if flat else out.reshape(*batch, *out.shape[1:])  # pyright: ignore

"""ReLU(max_pool(conv(x)) + bias) for stacked runs: a fused CPU kernel (kernel/) where it fits, PyTorch elsewhere."""

from __future__ import annotations

import ctypes
import functools
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dasmil.ops import library

# (in channels, side of the picture, out channels) of the blocks that the kernel was compiled for
COMPILED = ((1, 28, 10), (10, 12, 20))


class _Problem(ctypes.Structure):
    """conv_pool_problem of kernel/problem.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("runs", "images", "in_channels", "side", "out_channels", "portable")),
        *((name, ctypes.c_void_p) for name in ("x", "weight", "bias", "out", "winner")),
        *((name, ctypes.c_void_p) for name in ("d_out", "d_weight", "d_bias", "d_x")),
    ]


@functools.cache
def load() -> ctypes.CDLL | None:
    """The compiled kernel; None, with one warning, where there is none."""
    loaded = library.load(Path(__file__).parent, "conv_pool", _Problem)
    if not isinstance(loaded, str):
        return loaded
    warnings.warn(
        f"the fused convolution kernel is missing: {loaded}. PyTorch is used instead: the same results, slower",
        RuntimeWarning,
        stacklevel=3,
    )
    return None


def conv_pool(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [R, n, ci, s, s], weight [R, co, ci, 5, 5], bias [R, co] -> [R, n, co, (s - 4) / 2, (s - 4) / 2].

    Bias and ReLU come after the 2 x 2 max pool, which gives the same numbers for a quarter of the work.
    """
    block = (x.shape[2], x.shape[3], weight.shape[1])
    if block in COMPILED and x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32 and load() is not None:
        result = _Fused.apply(x.contiguous(), weight.contiguous(), bias.contiguous(), False)
        assert isinstance(result, Tensor)
        return result
    return grouped(x, weight, bias)


def grouped(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same by PyTorch: runs become groups of channels."""
    runs, images = x.shape[:2]
    # Channels innermost in memory: pooling and convolution then work on whole vectors, in about half the time.
    pictures = x.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    kernels = weight.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    h = F.max_pool2d(F.conv2d(pictures, kernels, groups=runs), 2)
    h = F.relu(h + bias.reshape(-1, 1, 1))
    return h.reshape(images, runs, -1, *h.shape[2:]).transpose(0, 1)


class _Fused(torch.autograd.Function):
    """The kernel, with its own backward pass. portable: leave the CPU's special instructions unused."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, portable: bool) -> Tensor:
        runs, images, channels, side, _ = x.shape
        size = (runs, images, weight.shape[1], (side - 4) // 2, (side - 4) // 2)
        out, winner = torch.empty(size), torch.empty(size, dtype=torch.uint8)
        ctx.sizes = (runs, images, channels, side, weight.shape[1], portable)
        ctx.save_for_backward(x, weight, winner)
        _run("forward", ctx.sizes, x=x, weight=weight, bias=bias, out=out, winner=winner)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, winner = ctx.saved_tensors
        d_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        d_weight, d_bias = torch.empty_like(weight), weight.new_empty(weight.shape[:2])
        d_out = gradients[0].contiguous()
        inputs, results = {"x": x, "weight": weight, "winner": winner, "d_out": d_out}, {"d_x": d_x}
        _run("backward", ctx.sizes, **inputs, **results, d_weight=d_weight, d_bias=d_bias)
        return d_x, d_weight, d_bias, None


def _run(which: str, sizes: tuple[int, ...], **tensors: Tensor | None) -> None:
    kernel = load()
    assert kernel is not None
    pointers = {name: None if tensor is None else tensor.data_ptr() for name, tensor in tensors.items()}
    problem = _Problem(*sizes, **pointers)
    failed = getattr(kernel, f"conv_pool_{which}")(ctypes.byref(problem))
    assert not failed, f"the kernel was not compiled for {sizes}"

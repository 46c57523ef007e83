"""Trust on first use: before the Triton kernels serve a device, they are compared with `chunked` on it.

The kernels were verified in Triton's interpreter and compiled ahead of time, but never run on a GPU by their authors.
Every variant (options, sizes, device, precision) is therefore compared once on a small bag: output and all gradients
against `chunked` in float64 on the same device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dasmil.ops.das_attention import triton_backend
from dasmil.ops.das_attention.chunked import chunked
from dasmil.ops.das_attention.operands import FLOATING, Operands, Settings

SMALL = 130
"""Instances of the bag: several blocks and a rest."""
LIMITS = {"tf32x3": 5e-5, "ieee": 5e-5, "tf32": 2e-2, "bf16": 2e-1}
"""The largest error that is accepted, relative to the largest number: five times the limits that tests
hold with the arithmetic of each precision emulated and noise of the order of the hardware's on special functions."""

_found: dict[tuple[Any, ...], str | None] = {}


def distrust(x: Operands, settings: Settings, dot: str | None = None) -> str | None:
    """Why this variant is not to be trusted on this device; None where it computes what `chunked` does."""
    dot = dot or triton_backend.dot_precision()
    ordered = settings.radius is not None and x.n >= triton_backend.WORTH_ORDERING
    key = (
        x.query.device, dot, x.query.shape[-1], x.value.shape[-1], x.coords.shape[-1], ordered, settings.phi,
        settings.product_term, settings.self_pair, settings.seeds is not None, settings.bias,
        settings.radius is not None, *(tensor is not None for tensor in x),
    )  # fmt: skip
    if key not in _found:
        try:
            _found[key] = _compare(x, settings, dot, triton_backend.WORTH_ORDERING + 70 if ordered else SMALL)
        except Exception as error:  # the compiler's errors have many types; whatever it is, the kernel is not used
            told = (str(error).strip() or "no message").splitlines()[0][:200]
            _found[key] = f"they fail on {x.query.device} ({type(error).__name__}: {told})"
    return _found[key]


def _compare(x: Operands, settings: Settings, dot: str, n: int) -> str | None:
    small, few = small_bag(x, n), settings
    if settings.radius is not None:
        few = few._replace(radius=(0.6,) * 2, distance_scale=1.0)
    if settings.seeds is not None:
        few = few._replace(seeds=torch.tensor([0x9ABCDEF012345678 >> 1]))
    worst, name = largest_error(small, few, lambda a, b: triton_backend.fused(a, b, dot))
    if worst <= LIMITS[dot]:
        return None
    told = f"{name} is off by {worst:.1e} of its size, expected at most {LIMITS[dot]:.0e}"
    return f"they disagree with 'chunked' on {x.query.device} ({told}, dot {dot})"


def small_bag(x: Operands, n: int) -> Operands:
    """A random bag of two heads with whatever `x` has."""
    generator = torch.Generator().manual_seed(0)
    d, o, axes, device = x.query.shape[-1], x.value.shape[-1], x.coords.shape[-1], x.query.device
    bins = 0 if x.bias_table is None else x.bias_table.shape[-1]
    shapes = {
        "query": (2, n, d), "key": (2, n, d), "value": (2, n, o), "coords": (n, axes), "theta": (2,), "beta": (2,),
        "key_embed": (2, 2, d), "query_embed": (2, 2, d), "value_embed": (2, 2, o), "bias_scale": (2,),
        "bias_table": (2, bins), "bias_edges": (max(bins - 1, 0),),
    }  # fmt: skip
    made: dict[str, Tensor] = {}
    for name in FLOATING:
        if getattr(x, name) is not None:
            made[name] = torch.randn(shapes[name], generator=generator)
    made["query"] /= d**0.5
    for name in ("theta", "bias_scale"):
        if name in made:
            made[name] = made[name].abs() + 0.3
    if "bias_edges" in made:
        made["bias_edges"] = torch.linspace(0.2, 2.0, max(bins - 1, 0))
    if x.mask is not None:
        made["mask"] = torch.rand(n, generator=generator) > 0.3
    if x.section is not None:
        made["section"] = torch.randint(-1, 3, (n,), generator=generator)
    return Operands(**{name: tensor.to(device) for name, tensor in made.items()})


def largest_error(
    x: Operands, settings: Settings, compute: Callable[[Operands, Settings], Tensor]
) -> tuple[float, str]:
    """Of the output and every gradient, against `chunked` in float64, relative to the largest number; and its name."""
    settings = settings._replace(scale=1.0, distance_scale=1.0)
    generator = torch.Generator().manual_seed(1)
    d_out = torch.randn(x.value.shape, generator=generator).to(x.query.device)
    results = [_run(x, settings, d_out, compute, torch.float32), _run(x, settings, d_out, chunked, torch.float64)]
    errors = {name: float((a - b).abs().max() / b.abs().max().clamp(min=1.0)) for name, a, b in _paired(*results)}
    bad = {name: error if error == error else float("inf") for name, error in errors.items()}
    name = max(bad, key=lambda name: bad[name])
    return bad[name], name


def _paired(found: dict[str, Tensor], exact: dict[str, Tensor]) -> list[tuple[str, Tensor, Tensor]]:
    return [(name, found[name].double(), exact[name]) for name in exact]


def _run(
    x: Operands,
    settings: Settings,
    d_out: Tensor,
    compute: Callable[[Operands, Settings], Tensor],
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    with torch.inference_mode(False), torch.enable_grad():
        leaves: dict[str, Tensor] = {
            name: tensor.detach().to(dtype, copy=True).requires_grad_(name not in ("coords", "bias_edges"))
            for name in FLOATING
            if (tensor := getattr(x, name)) is not None
        }
        out = compute(x._replace(**leaves), settings)
        out.backward(d_out.to(dtype))
        grads = {f"the gradient of {name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
        return {"the output": out.detach(), **grads}

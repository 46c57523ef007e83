"""Where the softmax saturates: what float32 still promises, as this operator's README states it."""

from __future__ import annotations

import importlib

import pytest
import torch

native = importlib.import_module("dasmil.ops.das_attention.native")
needs_kernel = pytest.mark.skipif(not native.available(), reason="the kernel was not built: no C++ compiler")


def saturated(problem, **options):
    """Logits in the thousands: almost every row gives all its weight to one column."""
    case = problem(40, lead=(2,), phi="identity", **options)
    case.coords = (case.coords * 5000).round()
    case.tensors["beta"] = torch.ones(2, dtype=torch.float64)
    return case


def test_chunked_is_as_exact_as_plain_float32(problem):
    case = saturated(problem)
    exact, plain, found = (
        case.run("reference"),
        case.run("reference", torch.float32),
        case.run("chunked", torch.float32),
    )
    for name, tensor in exact.items():
        largest = tensor.abs().max()
        own = (plain[name] - tensor).abs().max() / largest
        assert (found[name] - tensor).abs().max() / largest <= 4 * own + 1e-5, name


@needs_kernel
@pytest.mark.parametrize("options", [{}, {"section": True}, {"dropout_p": 0.3}])
def test_the_kernel_keeps_its_bound(problem, options):
    """dL/de is exact to a few roundings of |dz| |v|; the gradients inherit that, times what e depends on."""
    case = saturated(problem, **options)
    exact, found = case.run("reference"), case.run("native", torch.float32)
    t = case.tensors
    size = 2e-6 * float(
        (
            case.d_out.norm(dim=-1).amax(-1)
            * (t["value"].norm(dim=-1).amax(-1) + 1e4 * t["value_embed"].norm(dim=-1).amax(-1))
        ).max()
    )
    phi = float(torch.cdist(case.coords, case.coords).max())
    bound = {
        "query": 0.4 * (t["key"].norm(dim=-1).max() + phi * t["key_embed"].norm(dim=-1).max()),
        "key": 0.4 * 40 * (t["query"].norm(dim=-1).max() + phi * t["query_embed"].norm(dim=-1).max()),
    }
    for name, factor in bound.items():
        assert (found[name] - exact[name]).abs().max() <= size * factor, name
    for name in ("output", "value", "value_embed"):  # no difference is taken for these
        torch.testing.assert_close(
            found[name].double(), exact[name], rtol=1e-4, atol=1e-5 * float(exact[name].abs().max())
        )


@needs_kernel
def test_weights_of_large_logits_sum_to_one_in_the_backward_pass_too(problem):
    """The gradient of the values under ones is the sum of the weights that the backward pass computes again."""
    case = problem(50, absent=("theta", "beta", "key_embed", "query_embed", "value_embed"), d=8, o=1)
    case.tensors["query"] = 4096 * torch.ones_like(case.tensors["query"])
    case.tensors["key"] = 64 + case.tensors["key"] / 4096  # logits near 850,000 that differ by a few
    case.d_out = torch.ones_like(case.d_out)
    weights = case.run("native", torch.float32)["value"]
    assert abs(float(weights.sum()) / 50 - 1) < 1e-5

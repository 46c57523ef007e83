"""Where the softmax saturates: what float32 still promises, as this operator's README states it."""

from __future__ import annotations

import importlib

import pytest
import torch

from dasmil.ops import das_attention

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


def size_of_terms(case):
    """What the gradient of each query is the sum of, in absolute values: p (|dz| |v|, and its mean) |k + b^K|."""
    t = {name: tensor.detach() for name, tensor in case.tensors.items()}
    delta = torch.cdist(case.coords, case.coords).unsqueeze(-3)
    phi = ((delta - t["theta"][..., None, None]) * t["beta"][..., None, None]).unsqueeze(-1)

    def between(name, sign):
        u, v = t[name][..., 0, None, None, :], t[name][..., 1, None, None, :]
        return phi * u + (1 - phi) * v if sign else (phi * u).abs() + ((1 - phi) * v).abs()

    key = t["key"].unsqueeze(-3)
    logits = (t["query"].unsqueeze(-2) * (key + between("key_embed", True))).sum(-1)
    logits = 0.4 * (logits + (key * between("query_embed", True)).sum(-1))
    weights = logits.softmax(-1)
    told = (case.d_out.abs().unsqueeze(-2) * (t["value"].abs().unsqueeze(-3) + between("value_embed", False))).sum(-1)
    parts = weights * (told + (weights * told).sum(-1, keepdim=True))
    return 0.4 * (parts.unsqueeze(-1) * (key.abs() + between("key_embed", False))).sum(-2)


@needs_kernel
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("far", [1.0, 100.0, 5000.0])
def test_errors_are_a_few_roundings_of_the_terms_of_a_gradient(problem, seed, far):
    """Where the terms cancel, the exact gradient is smaller than that: then nothing in float32 could tell it."""
    case = problem(40, lead=(2,), phi="identity", seed=seed)
    case.coords = (case.coords * far).round()
    exact, found = case.run("reference"), case.run("native", torch.float32)
    roundings = (found["query"] - exact["query"]).abs().max() / (2**-24 * size_of_terms(case).max())
    assert roundings < 4


@pytest.mark.skipif(not native.available(), reason="the kernel was not built: no C++ compiler")
@pytest.mark.parametrize("jump", [0.0, 40.0])
def test_values_up_to_1e15_do_not_overflow_the_kernel_and_larger_ones_not_chunked(jump):
    """A running sum may be 2^64 times its last size before the kernel takes a new shift: n |v| below 1.8e19 fits."""
    n = 600
    generator = torch.Generator().manual_seed(0)
    query, key = torch.ones(1, n, 1), torch.rand(1, n, 1, generator=generator)
    key[:, n // 2 :] += jump  # later tiles have logits that much larger
    value, coords = torch.randn(1, n, 3, generator=generator), torch.rand(n, 2, generator=generator)
    exact = das_attention(query.double(), key.double(), value.double(), coords.double(), scale=1.0, backend="reference")
    assert isinstance(exact, torch.Tensor)
    for backend, size in (("native", 1e15), ("chunked", 1e15), ("chunked", 1e37)):
        found = das_attention(query, key, size * value, coords, scale=1.0, backend=backend)
        assert isinstance(found, torch.Tensor)
        torch.testing.assert_close(found.double() / size, exact, rtol=1e-4, atol=1e-6)

"""The fused convolution kernel against PyTorch in float64: output and every gradient, at odd sizes and odd values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dasmil import create_model
from dasmil.ops import conv_pool

needs_kernel = pytest.mark.skipif(conv_pool.load() is None, reason="the kernel was not built (no C++ compiler)")


def problem(block: tuple[int, int, int], runs: int, images: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures with large constant parts, so that many pools have equal candidates."""
    channels, side, out = block
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(runs, images, channels, side, side, generator=generator)
    x[..., : side // 2] = -0.4
    weight = torch.randn(runs, out, channels, 5, 5, generator=generator) * 0.2
    return x, weight, torch.randn(runs, out, generator=generator)


@needs_kernel
@pytest.mark.parametrize("portable", [False, True], ids=["best instructions", "portable"])
@pytest.mark.parametrize("block", conv_pool.COMPILED)
@pytest.mark.parametrize(("runs", "images"), [(1, 1), (3, 7)])
def test_equals_pytorch(block: tuple[int, int, int], runs: int, images: int, portable: bool) -> None:
    inputs = [t.requires_grad_() for t in problem(block, runs, images)]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    found = conv_pool._Fused.apply(*inputs, portable)
    expected = conv_pool.grouped(*exact)
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    weight = torch.cos(torch.arange(expected.numel(), dtype=torch.float64)).view(expected.shape)
    ours = torch.autograd.grad((found * weight.float()).sum(), inputs)
    theirs = torch.autograd.grad((expected * weight).sum(), exact)
    plain = [t.detach().requires_grad_() for t in inputs]
    rounded = torch.autograd.grad((conv_pool.grouped(*plain) * weight.float()).sum(), plain)
    for name, a, b, c in zip(("x", "weight", "bias"), ours, theirs, rounded):
        # Equal candidates of a pool may be told apart by rounding; then the gradient moves to a neighbour, as it also
        # does for PyTorch in float32. What must hold everywhere is the sum.
        if name != "x":
            error, usual = (a.double() - b).abs().max(), (c.double() - b).abs().max()
            assert error <= max(2 * usual, 1e-5 * b.abs().max()), name
        torch.testing.assert_close(a.double().sum(), b.sum(), rtol=1e-4, atol=1e-4)


@needs_kernel
@pytest.mark.parametrize("block", conv_pool.COMPILED)
def test_gradient_of_the_picture(block: tuple[int, int, int]) -> None:
    """Without ties every pixel's gradient is determined."""
    x, weight, bias = problem(block, 2, 3)
    x = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    exact = x.detach().double().requires_grad_()
    (ours,) = torch.autograd.grad(conv_pool.conv_pool(x, weight, bias).square().sum(), x)
    (theirs,) = torch.autograd.grad(conv_pool.grouped(exact, weight.double(), bias.double()).square().sum(), exact)
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


@needs_kernel
def test_the_first_of_equals_wins() -> None:
    """Constant pictures: all four candidates are equal, and the gradient goes to the first."""
    x = torch.ones(1, 1, 1, 28, 28, requires_grad=True)
    weight = torch.zeros(1, 10, 1, 5, 5)
    weight[..., 0, 0] = 1.0
    (gradient,) = torch.autograd.grad(conv_pool.conv_pool(x, weight, torch.zeros(1, 10)).sum(), x)
    expected = torch.zeros(28, 28)
    expected[0:24:2, 0:24:2] = 10.0
    assert torch.equal(gradient[0, 0, 0], expected)


@needs_kernel
def test_nan_is_not_hidden() -> None:
    x, weight, bias = problem((1, 28, 10), 1, 2)
    x[0, 1, 0, 9, 9] = torch.nan
    found, expected = conv_pool.conv_pool(x, weight, bias), conv_pool.grouped(x, weight, bias)
    assert torch.equal(found.isnan(), expected.isnan())
    assert expected.isnan().any()


@needs_kernel
def test_stacked_digit_models_equal_each_run_alone() -> None:
    torch.manual_seed(0)
    models = [create_model("das-mil", preset="mnist-collage").eval() for _ in range(3)]
    stacked = {name: torch.stack([m.state_dict()[name] for m in models]) for name in models[0].state_dict()}
    digits, coords = torch.randn(3, 6, 1, 28, 28), torch.rand(3, 6, 2) * 256
    together = torch.func.functional_call(models[0], stacked, (digits, coords)).logit
    exact = [m.double()(digits[i].double(), coords[i]).logit for i, m in enumerate(models)]
    torch.testing.assert_close(together.double(), torch.stack(exact), rtol=1e-5, atol=1e-5)


def test_without_the_kernel_the_result_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = problem((1, 28, 10), 2, 3)
    before = conv_pool.conv_pool(x, weight, bias)
    monkeypatch.setattr(conv_pool, "load", lambda: None)
    torch.testing.assert_close(conv_pool.conv_pool(x, weight, bias), before, rtol=1e-5, atol=1e-5)


@needs_kernel
def test_the_bench_measures_ways_that_agree() -> None:
    from benchmarks.convolution import measure

    figures = measure(runs=2, rounds=1)
    assert set(figures["seconds"]) == {"kernel", "grouped", "loop"}
    assert max(figures["difference"].values()) < 1e-5

"""Nystrom attention of short sequences equals the package's padded one, output and every gradient."""

from __future__ import annotations

import pytest
import torch
from nystrom_attention import NystromAttention

from dasmil.nn.nystrom import long_nystrom, short_nystrom


@pytest.mark.parametrize("n", [1, 2, 7, 15, 16])
def test_short_sequences_equal_the_padded_ones(n: int) -> None:
    torch.manual_seed(n)
    attention = NystromAttention(dim=24, dim_head=6, heads=4, num_landmarks=16, pinv_iterations=6).double()
    x = torch.randn(2, n, 24, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(2, n, 24, dtype=torch.float64)
    # The package sums one identity in single precision; whole numbers are exact in it.
    # It starts the pseudo-inverses of a batch at a common scale: bags alone are what the models compute.
    expected, found = torch.cat([attention(bag[None]) for bag in x]), short_nystrom(attention, x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    leaves = [x, *attention.parameters()]
    for mine, theirs in zip(
        torch.autograd.grad((found * probe).sum(), leaves), torch.autograd.grad((expected * probe).sum(), leaves)
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("n", [17, 32, 75])
def test_long_sequences_equal_those_of_the_package(n: int) -> None:
    torch.manual_seed(n)
    attention = NystromAttention(dim=24, dim_head=6, heads=4, num_landmarks=16, pinv_iterations=6).double()
    x, probe = torch.randn(n, 24, dtype=torch.float64, requires_grad=True), torch.randn(n, 24, dtype=torch.float64)
    attention.to_out[1].p = 0.0
    expected, found = attention(x[None])[0], long_nystrom(attention, x)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)  # it has one identity in single precision
    inputs = [x, *attention.parameters()]
    for a, b in zip(
        torch.autograd.grad((found * probe).sum(), inputs), torch.autograd.grad((expected * probe).sum(), inputs)
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)

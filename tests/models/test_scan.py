"""The linear recurrence in pieces against a loop, along a sequence and over a grid, with its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dasmil.nn.scan import scan, scan_grid


def loop(log_decay: Tensor, x: Tensor) -> Tensor:
    states = [x[0]]
    for step in range(1, len(x)):
        states.append(log_decay[step].exp() * states[-1] + x[step])
    return torch.stack(states)


def drawn(*shape: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    log_decay = -3 * torch.rand(*shape, dtype=torch.float64)
    return log_decay.requires_grad_(), torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 16, 17, 50])
def test_a_sequence(n: int) -> None:
    given = drawn(n, 3, 2)
    found, expected = scan(*given), loop(*given)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad((y * weights).sum(), given) for y in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 5), (6, 1), (4, 7)])
def test_a_grid(height: int, width: int) -> None:
    """P_ij = a_ij P_i,j-1 + b_ij, then S_ij = a_ij S_i-1,j + P_ij."""
    log_decay, x = (y.detach() for y in drawn(height, width, 2))
    a, rows, states = log_decay.exp(), torch.zeros_like(x), torch.zeros_like(x)
    for i in range(height):
        for j in range(width):
            rows[i, j] = x[i, j] + (a[i, j] * rows[i, j - 1] if j else 0)
            states[i, j] = rows[i, j] + (a[i, j] * states[i - 1, j] if i else 0)
    torch.testing.assert_close(scan_grid(log_decay, x), states, rtol=1e-12, atol=1e-12)

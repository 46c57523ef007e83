"""The graph layers against the n x n matrices that they avoid."""

from __future__ import annotations

import pytest
import torch

from dasmil.nn.graph import link_loss


@pytest.mark.parametrize("clusters", [1, 4])
def test_link_loss_is_the_norm_of_the_dense_difference(clusters: int) -> None:
    real = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    scores = torch.randn(2, 6, clusters, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    results = []
    for dense in (True, False):
        x = scores.clone().requires_grad_()
        s = x.softmax(-1) * 0.9
        if dense:
            s = s * real.unsqueeze(-1)
            edges = (real.unsqueeze(-1) & real.unsqueeze(-2) & ~torch.eye(6, dtype=torch.bool)).double()
            loss = (edges - s @ s.mT).flatten(1).norm(dim=1) / torch.tensor([36.0, 16.0])
        else:
            loss = link_loss(s, real)
        results.append((loss, torch.autograd.grad(loss.sum(), x)[0]))
    for a, b in zip(*results):
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)


def test_link_loss_keeps_its_digits_for_a_large_bag() -> None:
    """One cluster: A - S S^T is minus the identity, whose norm is sqrt(n)."""
    n = 30_000
    loss = link_loss(torch.ones(n, 1), torch.ones(n, dtype=torch.bool))
    assert float(loss) == pytest.approx(n**0.5 / n**2, rel=1e-6)

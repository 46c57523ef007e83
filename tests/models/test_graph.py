"""The graph layers against the n x n matrices that they avoid."""

from __future__ import annotations

import pytest
import torch

import dasmil.nn.distance_sum
import dasmil.nn.graph
from dasmil.nn.graph import DistanceEdges, GATLayer, GCNLayer, link_loss
from dasmil.ops.das_attention.reference import pair_distances


@pytest.mark.parametrize("kind", ["gcn", "gat"])
@pytest.mark.parametrize("pairs", [1 << 24, 5 * 57])
def test_layers_are_those_of_the_dense_matrix(kind: str, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output and every gradient, in one block of rows and in blocks of five; padding and sections among them."""
    monkeypatch.setattr(dasmil.nn.graph, "ROWS", pairs)
    monkeypatch.setattr(dasmil.nn.distance_sum, "ROWS", pairs)
    torch.manual_seed(0)
    x = torch.randn(2, 57, 6, dtype=torch.float64, requires_grad=True)
    coords, section = torch.rand(2, 57, 2, dtype=torch.float64) * 900, torch.randint(0, 2, (2, 57))
    real = torch.ones(2, 57, dtype=torch.bool)
    real[1, 40:] = False
    together = real.unsqueeze(-1) & real.unsqueeze(-2) & (section.unsqueeze(-1) == section.unsqueeze(-2))
    layer = (GCNLayer(6, 4) if kind == "gcn" else GATLayer(6, 4)).double()
    h = layer.lin(x)
    if kind == "gcn":
        edges = pair_distances(coords) / 500 * together + torch.eye(57)
        root = edges.sum(-1, keepdim=True).rsqrt()
        dense = root * (edges @ (root * h)) + layer.bias
    else:
        scores = (h @ layer.att_src).unsqueeze(-2) + (h @ layer.att_dst).unsqueeze(-1)
        scores = torch.nn.functional.leaky_relu(scores, 0.2).masked_fill(~real.unsqueeze(-2), float("-inf"))
        dense = scores.softmax(-1) @ h + layer.bias
    found = layer(x, real, DistanceEdges(coords, real, section, 500.0))
    torch.testing.assert_close(found, dense, rtol=1e-12, atol=1e-12)
    weight, inputs = torch.randn_like(dense), [x, *layer.parameters()]
    for a, b in zip(
        torch.autograd.grad((found * weight).sum(), inputs), torch.autograd.grad((dense * weight).sum(), inputs)
    ):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


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

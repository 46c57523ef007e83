"""Graph layers on the fully connected graph of a bag, whose matrix of pairs is never kept whole."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.nn.distance_sum import ROWS, distance_sum
from dasmil.nn.linear import Linear, per_run
from dasmil.nn.recompute import part_again


def real_instances(x: Tensor, mask: Tensor | None) -> Tensor:
    """The mask [..., n], all True where there is none."""
    return torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device) if mask is None else mask


class DistanceEdges:
    """Edges of all pairs that weigh distance / distance_scale; 1 to oneself, 0 to padding and across sections."""

    def __init__(self, coords: Tensor, real: Tensor, section: Tensor | None, distance_scale: float) -> None:
        self.coords, self.section, self.scale = coords, section, distance_scale
        self.real = real.unsqueeze(-1)
        self.degree = self.times(torch.ones_like(self.real, dtype=coords.dtype))
        """[..., n, 1], at least 1: every instance is its own neighbour."""

    def times(self, x: Tensor) -> Tensor:
        """sum_j A_ij x_j of x [..., n, f], without the matrix A."""
        others = distance_sum((x * self.real).unsqueeze(-3), self.coords, self.section).squeeze(-3)
        return others / self.scale * self.real + x


class GATLayer(nn.Module):
    """z'_i = sum_j a_ij z_j W + b, a_ij = softmax_j(LeakyReLU(s.z_j W + t.z_i W)) over all real j, i among them."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.lin = Linear(in_features, out_features, bias=False)
        self.att_src = nn.Parameter(torch.empty(out_features))
        self.att_dst = nn.Parameter(torch.empty(out_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        nn.init.xavier_uniform_(self.lin.weight)
        for vector in (self.att_src, self.att_dst):
            nn.init.uniform_(vector, -math.sqrt(6 / (1 + out_features)), math.sqrt(6 / (1 + out_features)))

    def forward(self, x: Tensor, real: Tensor, edges: DistanceEdges | None) -> Tensor:
        h, batch = self.lin(x), x.shape[:-2]
        source, target = ((h @ per_run(v, 1, batch).unsqueeze(-1)) for v in (self.att_src, self.att_dst))
        parts = [part_again(_attended, rows, source, h, real) for rows in target.split(max(1, ROWS // x.shape[-2]), -2)]
        return torch.cat(parts, -2) + per_run(self.bias, 1, batch).unsqueeze(-2)


def _attended(target: Tensor, source: Tensor, h: Tensor, real: Tensor) -> Tensor:
    """What rows with these targets [..., rows, 1] gather from all instances."""
    e = F.leaky_relu(source.mT + target, 0.2).masked_fill(~real.unsqueeze(-2), float("-inf"))
    return e.softmax(-1) @ h


class GCNLayer(nn.Module):
    """z' = D^-1/2 A D^-1/2 z W + b, D_ii = sum_j A_ij, with A the edges."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.lin = Linear(in_features, out_features, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_features))
        nn.init.xavier_uniform_(self.lin.weight)

    def forward(self, x: Tensor, real: Tensor, edges: DistanceEdges | None) -> Tensor:
        assert edges is not None
        root = edges.degree.rsqrt()
        return root * edges.times(root * self.lin(x)) + per_run(self.bias, 1, x.shape[:-2]).unsqueeze(-2)


class SAGELayer(nn.Module):
    """z'_i = W1 mean_{j != i} z_j + W2 z_i + b over real j; from the sum of all z_j, without a matrix of pairs."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.lin_rel = Linear(in_features, out_features, bias=False)
        self.lin_root = Linear(in_features, out_features)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        total = (x * real.unsqueeze(-1)).sum(-2, keepdim=True)
        others = (real.sum(-1)[..., None, None] - 1).clamp(min=1)
        return self.join((total - x) / others, x)

    def join(self, neighbours: Tensor, x: Tensor) -> Tensor:
        """W1 neighbours + W2 x + b."""
        return self.lin_rel(neighbours) + self.lin_root(x)


def link_loss(assignment: Tensor, real: Tensor) -> Tensor:
    """|A - S S^T|_F / n^2 for each bag, A the complete graph without self-loops: S [..., n, k], real [..., n].

    From |A|^2 - 2 tr(S^T A S) + |S^T S|^2 with A = 1 1^T - I, so nothing of size n x n is made; in float64, because
    for large bags the three terms nearly cancel.
    """
    s = assignment.double() * real.unsqueeze(-1)
    n = real.sum(-1).double()
    joined = s.sum(-2).square().sum(-1) - s.square().sum((-2, -1))
    squared = n * (n - 1) - 2 * joined + (s.mT @ s).square().sum((-2, -1))
    return (squared.clamp_min(torch.finfo(torch.float64).tiny).sqrt() / n.square()).to(assignment.dtype)

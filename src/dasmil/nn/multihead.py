"""Multi-head attention from one set to another, with PyTorch's parameters and start; runs may be stacked."""

from __future__ import annotations

import math

from torch import Tensor, nn

from dasmil.nn.attention import join
from dasmil.nn.linear import Linear


class MultiHead(nn.Module):
    """softmax(q k^T / sqrt(d / heads)) v for each head, joined, through ``out``; all four layers have a bias."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (Linear(features, features) for _ in range(3))
        self.out = Linear(features, features)
        self.heads = heads
        bound = math.sqrt(6 / (4 * features))  # Xavier's for the three as one matrix
        for layer in (self.query, self.key, self.value):
            nn.init.uniform_(layer.weight, -bound, bound)
            nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.out.bias)

    def project(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, keys of y and values of z [..., n, d], each as [..., heads, n, d / heads]."""
        q, k, v = self.query(x), self.key(y), self.value(z)
        split = [part.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for part in (q, k, v)]
        return split[0], split[1], split[2]

    def forward(self, x: Tensor, y: Tensor, z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """From x to y with values z; mask [..., m]: which of y are real. Also the weights, mean over heads."""
        q, k, v = self.project(x, y, z)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask[..., None, None, :], float("-inf"))
        weights = scores.softmax(-1)
        return self.out(join(weights @ v)), weights.mean(-3)

"""Selective state spaces: linear recurrences whose decay depends on the input, along a sequence or over a grid."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.nn.linear import Linear
from dasmil.nn.recompute import part_again

STATES, KERNEL = 16, 4
NUMBERS = 1 << 22
"""Numbers of the states of some channels that are held at a time; channels do not depend on one another."""


def scan(log_decay: Tensor, x: Tensor) -> Tensor:
    """s_t = exp(log_decay_t) s_{t-1} + x_t along the first dimension, s_{-1} = 0; log_decay is at most 0.

    About sqrt(n) pieces are scanned side by side, each from zero, and then get what the pieces before them left.
    """
    n, length = len(x), math.isqrt(len(x) - 1) + 1
    pieces = -(-n // length)
    fill = (0, 0) * (x.ndim - 1) + (0, pieces * length - n)
    log_decay, x = (F.pad(y, fill).unflatten(0, (pieces, length)) for y in (log_decay, x))
    decay, states = log_decay.exp().unbind(1), [x[:, 0]]
    for step in range(1, length):
        states.append(torch.addcmul(x[:, step], decay[step], states[-1]))
    found = torch.stack(states, 1)
    through = log_decay.cumsum(1).exp()
    before = [torch.zeros_like(x[0, 0])]
    for piece in range(pieces - 1):
        before.append(torch.addcmul(found[piece, -1], through[piece, -1], before[-1]))
    return torch.addcmul(found, through, torch.stack(before).unsqueeze(1)).flatten(0, 1)[:n]


def scan_grid(log_decay: Tensor, x: Tensor) -> Tensor:
    """Along the rows, then what that gave along the columns: [height, width, ...], the same decay both times."""
    along = scan(log_decay.transpose(0, 1), x.transpose(0, 1)).transpose(0, 1)
    return scan(log_decay, along)


class SelectiveScan(nn.Module):
    """u = SiLU(conv(a)); Delta, B and C from u; S = scan(exp(Delta A), Delta B u); (S C + D u) SiLU(z) [n, e].

    a, z [n, e]: n positions in order. The convolution sees KERNEL positions up to its own.
    """

    def __init__(self, channels: int, rank: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, KERNEL, groups=channels, padding=KERNEL - 1)
        self.select = Linear(channels, rank + 2 * STATES, bias=False)
        self.step = Linear(rank, channels)
        self.log_rate = nn.Parameter(torch.tensor([[math.log(k) for k in range(1, STATES + 1)]] * channels))
        self.skip = nn.Parameter(torch.ones(channels))
        self.rank = rank

    def forward(self, a: Tensor, z: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """grid: (height, width) of positions that are the cells of a picture, row by row; None: a sequence."""
        n = len(a)
        u = F.silu(self.conv(a.T.unsqueeze(0))[0, :, :n].T)
        r, b, c = self.select(u).split([self.rank, STATES, STATES], -1)
        some = max(1, NUMBERS // (n * STATES))
        parts = zip(*(y.split(some, -1) for y in (u, z)), *(y.split(some) for y in self._by_channel()), strict=True)
        shape = torch.zeros(*(grid or (n,)), 0)  # tensors alone go through what is computed again
        return torch.cat([part_again(_scanned, shape, r, b, c, *part) for part in parts], -1)

    def _by_channel(self) -> tuple[Tensor, ...]:
        return self.step.weight, self.step.bias, self.log_rate, self.skip


def _scanned(
    shape: Tensor, r: Tensor, b: Tensor, c: Tensor, u: Tensor, z: Tensor,
    weight: Tensor, bias: Tensor, log_rate: Tensor, skip: Tensor,
) -> Tensor:  # fmt: skip
    """Some channels: u, z [n, e], log_rate [e, states]."""
    step = F.softplus(F.linear(r, weight, bias))
    log_decay = step.unsqueeze(-1) * -log_rate.exp()
    given = (step * u).unsqueeze(-1) * b.unsqueeze(1)
    over: Callable[[Tensor, Tensor], Tensor] = scan if shape.ndim == 2 else scan_grid
    places = shape.shape[:-1]
    states = over(log_decay.unflatten(0, places), given.unflatten(0, places)).flatten(0, len(places) - 1)
    return ((states @ c.unsqueeze(-1)).squeeze(-1) + skip * u) * F.silu(z)

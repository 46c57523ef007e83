"""A small CNN for RGB patches, trained end to end with the rest of a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.errors import InputError
from dasmil.nn.draws import dropout
from dasmil.nn.linear import Linear
from dasmil.nn.recompute import part_again

CHANNELS = (16, 32, 64, 64)
SMALLEST, LARGEST = 8, 1024  # px
PIECE = 1 << 24
"""Numbers that the first layer may give at once (64 MB); a bag goes through in pieces of so many patches."""


class PatchCnn(nn.Module):
    """Patches [..., n, 3, s, s] of pixels from 0 to 255 -> [..., n, f].

    Blocks of conv 3x3, ReLU and max pool 2, with 16, 32, 64 and 64 channels: as many (up to four) as leave 4 x 4 pixels
    or more; the mean over positions; dropout, linear, ReLU. With four blocks and f = 64: 64,672 parameters. What is
    inside a block is computed again in the backward pass, so that memory grows with the patches and not with what the
    layers make of them.
    """

    def __init__(self, side: int, out_features: int, dropout: float) -> None:
        super().__init__()
        if not SMALLEST <= side <= LARGEST:
            raise InputError(f"in_features is {side}: patches must be {SMALLEST} to {LARGEST:,} px wide and high")
        self.in_shape = (3, side, side)
        self.out_features = out_features
        sizes = [size for k, size in enumerate(CHANNELS) if side >> (k + 1) >= 4]
        self.convs = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1) for before, after in zip((3, *sizes), sizes, strict=False)
        )
        for conv in self.convs:
            assert isinstance(conv, nn.Conv2d)
            assert conv.bias is not None
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            nn.init.zeros_(conv.bias)
        self.linear = Linear(sizes[-1], out_features)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        weights: list[Any] = [value for conv in self.convs for value in (conv.weight, conv.bias)]
        stacked = weights[0].ndim == 5
        weights = weights if stacked else [value.unsqueeze(0) for value in weights]
        runs = len(weights[0])
        patches = x.reshape(runs, -1, *self.in_shape)
        count = max(1, PIECE // (runs * CHANNELS[0] * x.shape[-1] ** 2))
        found = torch.cat([part_again(_blocks, piece, *weights) for piece in patches.split(count, 1)], dim=1)
        found = dropout(found if stacked else found[0], self.dropout, self.training)
        return F.relu(self.linear(found)).view(*x.shape[:-3], self.out_features)


def _blocks(patches: Tensor, *weights: Tensor) -> Tensor:
    """Patches [R, n, 3, s, s] through the blocks of each run; the mean over positions [R, n, c]."""
    found = []
    for run in range(len(patches)):
        h = (patches[run].to(weights[0].dtype) - 127.5) / 63.75
        for weight, bias in zip(weights[::2], weights[1::2], strict=True):
            h = F.max_pool2d(F.relu(F.conv2d(h, weight[run], bias[run], padding=1)), 2)
        found.append(h.mean((-2, -1)))
    return torch.stack(found)

"""Absolute position encodings: vectors that are added to the features of an instance."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.errors import InputError
from dasmil.nn.linear import Linear


def scaled(coords: Tensor, position_scale: float) -> Tensor:
    """Coordinates [..., n, 2] in units of ``position_scale``."""
    if coords.shape[-1] != 2:
        raise InputError(f"coords have {coords.shape[-1]} dimensions: this position encoding takes x and y only")
    return coords / position_scale


class AxialEncoding(nn.Module):
    """Sines and cosines of x and of y: coords [..., n, 2] -> [..., n, features].

    p_4k = sin(x w_k), p_4k+1 = cos(x w_k), p_4k+2 = sin(y w_k), p_4k+3 = cos(y w_k), w_k = 10000^(-4k / features).
    The published program gave it coordinates in pixels, so position_scale 1 means one pixel (or micrometre) a radian.
    """

    def __init__(self, features: int, position_scale: float = 1.0) -> None:
        super().__init__()
        self.features, self.position_scale = features, position_scale

    def forward(self, coords: Tensor) -> Tensor:
        k = torch.arange(math.ceil(self.features / 4), dtype=coords.dtype, device=coords.device)
        frequency = 10_000.0 ** (-4 * k / self.features)
        angle = scaled(coords, self.position_scale).unsqueeze(-2) * frequency.unsqueeze(-1)  # [..., n, k, 2]
        waves = torch.stack([angle.sin(), angle.cos()], dim=-1)  # [..., n, k, 2, 2]
        return waves.flatten(-3)[..., : self.features]


class FourierEncoding(nn.Module):
    """Learnable Fourier features: MLP([cos(c W^T), sin(c W^T)] / sqrt(f)): coords c [..., n, 2] -> [..., n, features].

    W [f / 2, 2] starts from N(0, 1 / gamma^2); the MLP has one hidden layer with GELU. f = 16, hidden 16, gamma 10.
    """

    def __init__(
        self, features: int, position_scale: float = 1.0, fourier: int = 16, hidden: int = 16, gamma: float = 10.0
    ) -> None:
        super().__init__()
        self.position_scale, self.fourier = position_scale, fourier
        self.frequency = Linear(2, fourier // 2, bias=False)
        nn.init.normal_(self.frequency.weight, std=1 / gamma)
        self.hidden = Linear(fourier, hidden)
        self.output = Linear(hidden, features)

    def forward(self, coords: Tensor) -> Tensor:
        angle = self.frequency(scaled(coords, self.position_scale).to(self.frequency.weight.dtype))
        waves = torch.cat([angle.cos(), angle.sin()], dim=-1) / math.sqrt(self.fourier)
        return self.output(F.gelu(self.hidden(waves)))

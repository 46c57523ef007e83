"""Random changes of instances while training."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from dasmil.errors import InputError

TURN_DEGREES = 10.0
SCALE = 0.1
SHIFT_PX = 1.5


def jitter_digits(features: Tensor) -> Tensor:
    """Each digit [..., 1, h, w] turned by up to 10 degrees, scaled by up to 10 % and shifted by up to 1.5 px.

    What comes in from outside the picture is its darkest value.
    """
    if features.ndim < 4 or features.shape[-3] != 1:
        raise InputError(
            f"augment 'digits' needs pictures [n, 1, h, w], found instances of {tuple(features.shape[-3:])}"
        )
    images = features.reshape(-1, *features.shape[-3:])
    count, _, height, width = images.shape
    draws = torch.rand(4, count, device=features.device, dtype=features.dtype) * 2 - 1
    angle = draws[0] * math.radians(TURN_DEGREES)
    zoom = 1 + draws[1] * SCALE
    cos, sin = torch.cos(angle) * zoom, torch.sin(angle) * zoom
    shift_x, shift_y = draws[2] * (2 * SHIFT_PX / width), draws[3] * (2 * SHIFT_PX / height)
    matrix = torch.stack([cos, -sin, shift_x, sin, cos, shift_y], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, [count, 1, height, width], align_corners=False)
    background = images.amin()
    moved = F.grid_sample(images - background, grid, align_corners=False)
    return (moved + background).view(features.shape)

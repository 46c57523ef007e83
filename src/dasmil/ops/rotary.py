"""Rotary positions in the plane or in space: a function of queries and keys that comes before any attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dasmil.errors import InputError


def rotate(x: Tensor, coords: Tensor, *, shortest: float, longest: float, section: Tensor | None = None) -> Tensor:
    """Turn pairs of numbers of x by angles that grow with the position, so that q.k depends on the difference alone.

    x [..., h, n, d], queries or keys; coords [..., n, 2 or 3]; d a multiple of twice the number of axes. The first
    share of d turns with the first axis, and so on; in each share the wavelengths (the length of a full turn, in the
    unit of the coordinates) go from ``shortest`` to ``longest`` in equal ratios. Instances with section -1 have no
    place and are not turned. Angles are computed in float64: far from the origin float32 would lose them.
    Implements Su et al. 2021 (RoFormer) along each axis, with lengths in place of counted positions.
    """
    axes, width = coords.shape[-1], x.shape[-1]
    if axes not in (2, 3) or coords.shape[-2] != x.shape[-2]:
        raise InputError(
            f"coords have shape {list(coords.shape)}, expected [..., {x.shape[-2]}, 2 or 3]: one row for each instance"
        )
    if width % (2 * axes):
        raise InputError(
            f"x has {width} numbers a head, which {axes} axes cannot share in pairs: use a multiple of {2 * axes}"
        )
    if not (0 < shortest <= longest < math.inf):
        raise InputError(
            f"shortest is {shortest} and longest is {longest}, expected two lengths above 0 in ascending order"
        )
    pairs = width // (2 * axes)
    steps = torch.linspace(0, 1, pairs, dtype=torch.float64, device=x.device) if pairs > 1 else torch.zeros(1).to(x)
    wave = shortest * (longest / shortest) ** steps.double()
    angle = (coords.double().unsqueeze(-1) * (2 * math.pi / wave)).flatten(-2)  # [..., n, axes * pairs]
    if section is not None:
        angle = angle.masked_fill((section < 0).unsqueeze(-1), 0.0)
    cos, sin = (t.to(x.dtype).unsqueeze(-3) for t in (angle.cos(), angle.sin()))
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)

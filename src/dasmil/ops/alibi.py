"""Attention with a bias that falls with the distance, in place of the attention inside a slide encoder's block."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dasmil.errors import InputError
from dasmil.ops.das_attention import das_attention


def alibi_slopes(heads: int) -> Tensor:
    """The slopes that Press et al. 2022 (ALiBi) fix for that number of heads [heads]: 2^-(8 / heads), its square, ...

    For a number of heads that is no power of two: those of the power below, and every other of the power above.
    """
    return torch.tensor(published_slopes(heads))


def published_slopes(heads: int) -> list[float]:
    """The same as numbers."""
    if not isinstance(heads, int) or heads < 1:
        raise InputError(f"heads is {heads!r}, expected a whole number of 1 or more")
    below = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / below) for i in range(below)]
    slopes += [2 ** (-4 * (i + 1) / below) for i in range(0, 2 * below, 2)][: heads - below]
    return slopes


def alibi_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    coords: Tensor,
    slopes: Tensor,
    *,
    class_tokens: int = 0,
    scale: float | None = None,
    distance_scale: float = 1.0,
    mask: Tensor | None = None,
    section: Tensor | None = None,
    radius: float | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """softmax(scale q.k - slope delta) v, exactly, without a bias of n x n numbers for each head.

    query, key [..., h, n, d]; value [..., h, n, o]; slopes [h]. The first ``class_tokens`` of the n have no place: no
    bias, never cut by the radius; coords [..., n - class_tokens, 2 or 3] are those of the others. delta is the
    Euclidean distance in units of distance_scale (the tile width, where slopes were made for a grid).
    scale: None is d^-0.5.
    mask [..., n]: False = padding; section [..., n - class_tokens]: pairs of different sections have no bias.
    Returns [..., h, n, o]; gradients reach query, key, value and slopes.
    """
    n = query.shape[-2]
    if not isinstance(class_tokens, int) or isinstance(class_tokens, bool) or not 0 <= class_tokens <= n:
        raise InputError(f"class_tokens is {class_tokens!r}, expected a whole number from 0 to the {n} instances")
    if coords.ndim < 2 or coords.shape[-2] != n - class_tokens:
        raise InputError(
            f"coords have shape {list(coords.shape)}, expected [..., {n - class_tokens}, 2 or 3]: one row for each of "
            f"the {n} instances but the first {class_tokens}, which have no place"
        )
    if class_tokens:
        coords = torch.nn.functional.pad(coords, (0, 0, class_tokens, 0))
        if section is None:
            section = torch.zeros(n - class_tokens, dtype=torch.int64, device=query.device)
        section = torch.nn.functional.pad(section, (class_tokens, 0), value=-1)
    z = das_attention(
        query, key, value, coords, bias="linear", bias_scale=slopes, radius=radius, mask=mask, section=section,
        scale=query.shape[-1] ** -0.5 if scale is None else scale, distance_scale=distance_scale, dropout_p=dropout_p,
        backend=backend,
    )  # fmt: skip
    assert isinstance(z, Tensor)
    return z

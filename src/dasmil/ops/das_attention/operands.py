"""What one call of the operator works on, as two values that every backend takes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dasmil.ops.das_attention.bias import ROOM


class Operands(NamedTuple):
    """The tensors of a call; None stands for what is absent.

    query, key [..., h, n, d]; value [..., h, n, o]; coords [..., n, 2 or 3]; theta, beta [..., h];
    *_embed [..., h, 2, d or o]; bias_scale [..., h]; bias_table [..., h, bins]; bias_edges [bins - 1];
    mask, section [..., n]. All but the first three may lack leading dimensions.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    coords: Tensor
    theta: Tensor | None = None
    beta: Tensor | None = None
    key_embed: Tensor | None = None
    query_embed: Tensor | None = None
    value_embed: Tensor | None = None
    bias_scale: Tensor | None = None
    bias_table: Tensor | None = None
    bias_edges: Tensor | None = None
    mask: Tensor | None = None
    section: Tensor | None = None

    @property
    def lead(self) -> torch.Size:
        """The leading dimensions with the heads."""
        return self.query.shape[:-2]

    @property
    def n(self) -> int:
        return self.query.shape[-2]


FLOATING = tuple(name for name in Operands._fields if name not in ("mask", "section"))
"""The operands that are computed with; the others only say which pairs there are."""


class Settings(NamedTuple):
    """What is not a tensor of numbers to compute with.

    seeds: int64, one for each equal share of the heads of all bags, in their order; None without dropout.
    radius: one for each head, in units of distance_scale.
    isa: "auto" takes the best instructions of the CPU; "portable" leaves its special ones unused; "avx2", "avx512".
    """

    phi: str
    scale: float
    distance_scale: float
    product_term: bool
    self_pair: bool
    dropout_p: float
    seeds: Tensor | None
    bias: str | None = None
    radius: tuple[float, ...] | None = None
    isa: str = "auto"

    def partial(self, operands: Operands) -> bool:
        """Whether some pairs may have no distance (m_ij = 0)."""
        return operands.section is not None or not self.self_pair

    def reach(self) -> list[float]:
        """For each head the largest squared distance that is seen, in the unit of the coordinates."""
        assert self.radius is not None
        return [(radius * self.distance_scale) ** 2 * (1 + 2 * ROOM) for radius in self.radius]


def widen(operands: Operands) -> Operands:
    """All numbers in float32, or in float64 where the query has it."""
    wide = torch.float64 if operands.query.dtype == torch.float64 else torch.float32
    if operands.coords.dtype == torch.float64 and wide == torch.float32:
        # Before rounding: an offset must not cost digits of the distances.
        operands = operands._replace(coords=operands.coords - operands.coords[..., :1, :])
    narrow = {
        name: tensor.to(wide)
        for name in FLOATING
        if (tensor := getattr(operands, name)) is not None and tensor.dtype is not wide
    }
    return operands._replace(**narrow) if narrow else operands


LARGE = 1e15
"""Sums of products of such numbers still fit float32."""


def clear_padding(x: Operands) -> Operands:
    """0 for what lies behind the mask and is no number, or so large that its products are none.

    Weights of 0 would multiply it, and 0 times NaN is NaN. Rows of padding have a result too: other numbers stay.
    """
    if x.mask is None:
        return x
    hidden = ~x.mask[..., None, :, None]
    rows = {name: getattr(x, name) for name in ("query", "key", "value")}
    return x._replace(**{name: row.masked_fill(hidden & ~(row.abs() < LARGE), 0) for name, row in rows.items()})


def absorb_scales(
    x: Operands, settings: Settings, scale: float | Tensor, length: float | Tensor
) -> tuple[Operands, Settings]:
    """Scales that are tensors move into the operands, where autograd sees them; the settings get numbers."""
    if isinstance(scale, Tensor):  # each term of the logits has one factor query or query_embed
        factor = scale.to(x.query).reshape(())
        embed = None if x.query_embed is None else x.query_embed * factor
        x, scale = x._replace(query=x.query * factor, query_embed=embed), 1.0
    if isinstance(length, Tensor):
        unit, number = length.to(x.query).reshape(()), float(length.detach())
        if x.theta is not None and x.beta is not None:  # delta / length - theta = (delta - theta length) / length
            x = x._replace(theta=x.theta * unit, beta=x.beta / unit)
        if x.bias_scale is not None:
            x = x._replace(bias_scale=x.bias_scale / unit if settings.bias == "linear" else x.bias_scale * unit)
        if x.bias_edges is not None:
            x = x._replace(bias_edges=x.bias_edges * number)
        if settings.radius is not None:
            settings = settings._replace(radius=tuple(radius * number for radius in settings.radius))
        length = 1.0
    return x, settings._replace(scale=scale, distance_scale=length)

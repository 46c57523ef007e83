"""What one call of the operator works on, as two values that every backend takes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Operands(NamedTuple):
    """The tensors of a call; None stands for what is absent.

    query, key [..., h, n, d]; value [..., h, n, o]; coords [..., n, 2 or 3]; theta, beta [..., h];
    *_embed [..., h, 2, d or o]; mask, section [..., n]. All but the first three may lack leading dimensions.
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
    isa: "auto", or "portable" to leave the CPU's special instructions unused.
    """

    phi: str
    scale: float
    distance_scale: float
    product_term: bool
    self_pair: bool
    dropout_p: float
    seeds: Tensor | None
    isa: str = "auto"

    def partial(self, operands: Operands) -> bool:
        """Whether some pairs may have no distance (m_ij = 0)."""
        return operands.section is not None or not self.self_pair


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


def absorb_scales(
    operands: Operands, scale: float | Tensor, distance_scale: float | Tensor
) -> tuple[Operands, float, float]:
    """Scales that are tensors move into the operands, where autograd sees them; those left are numbers."""
    if isinstance(scale, Tensor):  # each term of the logits has one factor query or query_embed
        factor = scale.to(operands.query).reshape(())
        operands = operands._replace(
            query=operands.query * factor,
            query_embed=None if operands.query_embed is None else operands.query_embed * factor,
        )
        scale = 1.0
    if isinstance(distance_scale, Tensor):  # delta / length - theta = (delta - theta length) / length
        length = distance_scale.to(operands.query).reshape(())
        if operands.theta is not None and operands.beta is not None:
            operands = operands._replace(theta=operands.theta * length, beta=operands.beta / length)
        distance_scale = 1.0
    return operands, scale, distance_scale

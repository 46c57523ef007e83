"""Pooling of instances into one vector, blind to padding."""

from __future__ import annotations

from torch import Tensor

from dasmil.errors import unknown_name

POOLINGS = ("max", "mean", "sum")


def check_pooling(kind: str) -> str:
    if kind not in POOLINGS:
        raise unknown_name("pooling", kind, POOLINGS)
    return kind


def pool(x: Tensor, mask: Tensor | None, kind: str) -> Tensor:
    """Pool x [..., n, f] over its real instances (mask [..., n], False = padding) into [..., f].

    Implements eq. (method:z_prime) for "max"; "mean" and "sum" are the alternatives of the paper's grid search.
    """
    if kind == "max":
        if mask is not None:
            x = x.masked_fill(~mask.unsqueeze(-1), float("-inf"))
        return x.max(dim=-2).values  # the gradient goes to one winner, also when several are equal
    check_pooling(kind)
    if mask is not None:
        x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
    total = x.sum(dim=-2)
    if kind == "sum":
        return total
    if mask is None:
        return total / x.shape[-2]
    return total / mask.sum(dim=-1, keepdim=True)

"""The linear layer, for one run or for stacked runs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

LARGE = 2**16
"""Weights from here on are multiplied from the left: their gradient then comes out in their own layout, uncopied."""


class Linear(torch.nn.Linear):
    """y = x W^T + b: weight [out, in] and x [..., in]; stacked weight [R, out, in], bias [R, out], x [R, ..., in]."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What a layer with this weight and bias gives, for one run or for stacked runs."""
    if weight.ndim == 2:
        return F.linear(input, weight, bias)
    runs, out_features, in_features = weight.shape
    rows = input.reshape(runs, -1, in_features)
    if in_features * out_features >= LARGE:
        columns = torch.bmm(weight, rows.transpose(1, 2))
        result = (columns if bias is None else columns + bias.unsqueeze(2)).transpose(1, 2)
        return result.reshape(*input.shape[:-1], out_features)
    if bias is None:
        result = torch.bmm(rows, weight.transpose(1, 2))
    else:
        result = torch.baddbmm(bias.unsqueeze(1), rows, weight.transpose(1, 2))
    return result.view(*input.shape[:-1], out_features)


def per_run(parameter: Tensor, own_ndim: int, batch_shape: torch.Size) -> Tensor:
    """A parameter of ``own_ndim`` dimensions, with all batch dimensions of the data if it is stacked, else as it is.

    Stacked: [R, *own] with batch_shape (R, B, ...) becomes the view [R, B, ..., *own].
    """
    if parameter.ndim == own_ndim:
        return parameter
    own = parameter.shape[1:]
    ones = (1,) * (len(batch_shape) - 1)
    return parameter.view(parameter.shape[0], *ones, *own).expand(*batch_shape, *own)

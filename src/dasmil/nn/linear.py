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
        if self.weight.ndim == 2:
            return F.linear(input, self.weight, self.bias)
        runs, out_features, in_features = self.weight.shape
        rows = input.reshape(runs, -1, in_features)
        if in_features * out_features >= LARGE:
            columns = torch.bmm(self.weight, rows.transpose(1, 2))
            result = (columns if self.bias is None else columns + self.bias.unsqueeze(2)).transpose(1, 2)
            return result.reshape(*input.shape[:-1], out_features)
        weight = self.weight.transpose(1, 2)
        if self.bias is None:
            result = torch.bmm(rows, weight)
        else:
            result = torch.baddbmm(self.bias.unsqueeze(1), rows, weight)
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

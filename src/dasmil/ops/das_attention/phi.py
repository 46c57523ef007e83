"""The interpolation functions phi. Each is a function of x = (delta - theta) * beta, theta and beta learnable."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

PHI: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,  # the paper's
    "identity": lambda x: x,  # the paper's ablation, at theta = 0 and beta = 1
    "exponential": lambda x: torch.exp(-x.abs()),  # decays away from distance theta; theta = 0: exp(-beta delta)
    "gaussian": lambda x: torch.exp(-0.5 * x.square()),  # the same, with width 1 / beta
}

# The same on memory that may be overwritten, without autograd.
IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": lambda x: x.sigmoid_(),
    "identity": lambda x: x,
    "exponential": lambda x: x.abs_().neg_().exp_(),
    "gaussian": lambda x: x.square_().mul_(-0.5).exp_(),
}

# The derivatives phi'(x) in `out`, given delta - theta, beta and f = phi(x); that of the sigmoid is PyTorch's own.
SLOPE: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "identity": lambda shifted, beta, f, out: out.fill_(1),
    "exponential": lambda shifted, beta, f, out: torch.mul(shifted, beta, out=out).sign_().neg_().mul_(f),
    "gaussian": lambda shifted, beta, f, out: torch.mul(shifted, beta, out=out).neg_().mul_(f),
}

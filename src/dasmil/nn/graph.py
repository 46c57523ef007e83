"""The fully connected graph of a bag, as the dense matrices that torch_geometric's dense layers take."""

from __future__ import annotations

import torch
from torch import Tensor


def flat_batch(z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Bags [B, n, f] and their masks [B, n] with all batch dimensions in one: what the dense layers expect."""
    n, features = z.shape[-2:]
    if mask is None:
        mask = torch.ones(z.shape[:-1], dtype=torch.bool, device=z.device)
    return z.reshape(-1, n, features), mask.reshape(-1, n)


def complete_graph(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Adjacency [B, n, n] of all pairs of real instances, without self-loops."""
    n = mask.shape[-1]
    other = ~torch.eye(n, dtype=torch.bool, device=mask.device)
    return (mask.unsqueeze(-1) & mask.unsqueeze(-2) & other).to(dtype)

"""Initial values that several published models share."""

from __future__ import annotations

from torch import nn

Layer = nn.Linear | nn.Conv1d | nn.Conv2d


def xavier_normal(*parts: nn.Module) -> None:
    """Xavier's normal weights and zero biases, in every linear layer and convolution of these parts."""
    for layer in _layers(*parts):
        nn.init.xavier_normal_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def torch_default(*parts: nn.Module) -> None:
    """PyTorch's own: weights and biases uniform within 1 / sqrt(fan in)."""
    for layer in _layers(*parts):
        layer.reset_parameters()


def _layers(*parts: nn.Module) -> list[Layer]:
    return [module for part in parts for module in part.modules() if isinstance(module, Layer)]

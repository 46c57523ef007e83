"""Parts of a model that the backward pass computes again, so that their insides need not be kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dasmil.nn.draws import drawing_again


def again_in_backward(module: nn.Module, *arguments: Any) -> Tensor:
    """The module's output; its inside is computed again in the backward pass, with the parameters of now.

    They are passed on by name, because stacked runs lend theirs to the module for the forward pass only.
    """
    state = dict(module.named_parameters()) | dict(module.named_buffers())

    def run(names: tuple[str, ...], given: tuple[Any, ...], *tensors: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, tensors)), given)

    return _checked(run, tuple(state), arguments, *state.values()) if torch.is_grad_enabled() else module(*arguments)


def part_again(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """What a function of tensors alone gives; its inside is computed again in the backward pass."""
    return _checked(function, *arguments) if torch.is_grad_enabled() else function(*arguments)


def _checked(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    found = checkpoint(drawing_again(function), *arguments, use_reentrant=False)
    assert isinstance(found, Tensor)
    return found

"""Parts of a model that the backward pass computes again, so that their insides need not be kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dasmil.nn.draws import drawing_again

SMALL = 1 << 16
"""Numbers given to a part up to which its insides are kept: of a bag of some hundred instances that is little memory,
and computing again takes a third of the time.
"""


def again_in_backward(module: nn.Module, *arguments: Any) -> Tensor:
    """The module's output; its inside is computed again in the backward pass, with the parameters of now.

    They are passed on by name, because stacked runs lend theirs to the module for the forward pass only.
    """
    state = dict(module.named_parameters()) | dict(module.named_buffers())

    def run(names: tuple[str, ...], given: tuple[Any, ...], *tensors: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, tensors)), given)

    if _kept(arguments):
        return module(*arguments)
    return _checked(run, tuple(state), arguments, *state.values())


def part_again(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """What a function of tensors alone gives; its inside is computed again in the backward pass."""
    return function(*arguments) if _kept(arguments) else _checked(function, *arguments)


def _kept(arguments: tuple[Any, ...]) -> bool:
    numbers = sum(given.numel() for given in arguments if isinstance(given, Tensor))
    return numbers <= SMALL or not torch.is_grad_enabled()


def _checked(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    found = checkpoint(drawing_again(function), *arguments, use_reentrant=False)
    assert isinstance(found, Tensor)
    return found

"""A model's sizes alone: what it would hold, before memory is taken or a number is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class _Undrawn(TorchFunctionMode):
    """Starting values are left out: of tensors without memory, PyTorch's compiler would be loaded to draw them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is Tensor.normal_ or getattr(func, "__module__", None) == nn.init.__name__:
            return given["tensor"] if "tensor" in given else args[0]
        if func in (torch.randn, torch.eye):
            return torch.empty(*args, **given)
        return func(*args, **given)


@contextmanager
def sizes_only() -> Iterator[None]:
    """Tensors made inside have a shape and a type, and no memory."""
    with torch.device("meta"), _Undrawn():
        yield

"""Bags from files and data sets."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dasmil.errors import unknown_name

if TYPE_CHECKING:
    from dasmil.types import Bag

# Data set -> the function that makes it: loader(name, protocol, split, **options) -> list of bags.
_LOADERS = {
    "mnist-bags": "dasmil.data.mnist:load_mnist",
    "mnist-collage": "dasmil.data.mnist:load_mnist",
    "mnist-collage-inv": "dasmil.data.mnist:load_mnist",
}

__all__ = ["list_datasets", "load_dataset"]


def list_datasets() -> list[str]:
    """Names that `load_dataset` knows."""
    return sorted(_LOADERS)


def load_dataset(name: str, protocol: str = "clean", split: str = "train", **options: Any) -> Sequence[Bag]:
    """The bags of a built-in data set; see docs/datasets.md for protocols, splits and options.

    Example: dasmil.load_dataset("mnist-collage", split="test-large")
    """
    if name not in _LOADERS:
        raise unknown_name("data set", name, _LOADERS)
    module, function = _LOADERS[name].split(":")
    return getattr(importlib.import_module(module), function)(name, protocol, split, **options)

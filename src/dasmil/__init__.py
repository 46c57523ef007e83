"""Deep multiple instance learning with distance-aware self-attention (DAS-MIL)."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public names and their homes; imported on first use, so that `import dasmil` and `dasmil --help` stay quick.
_HOMES = {
    "load_dataset": "dasmil.data",
    "load_cohort": "dasmil.data.cohort",
    "Bag": "dasmil.types",
    "Output": "dasmil.types",
    "fit": "dasmil.train",
    "Explanation": "dasmil.types",
    "explain": "dasmil.explain",
    "create_model": "dasmil.models",
    "list_models": "dasmil.models",
    "load_model": "dasmil.models",
    "read_bag": "dasmil.data.store",
    "write_bag": "dasmil.data.store",
}

__all__ = ["__version__", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dasmil' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

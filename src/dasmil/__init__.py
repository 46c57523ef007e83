"""Deep multiple instance learning with distance-aware self-attention (DAS-MIL)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # a type checker reads these; at run time a name is imported on first use, see _HOMES
    from dasmil.attribution import explain
    from dasmil.data import load_dataset
    from dasmil.data.cohort import load_cohort
    from dasmil.data.store import read_bag, write_bag
    from dasmil.models import create_model, list_models
    from dasmil.runs import Run, load_model
    from dasmil.study.apply import evaluate, predict
    from dasmil.study.compare import compare
    from dasmil.study.search import search
    from dasmil.study.spec import BagSpec, CohortSpec
    from dasmil.study.training import cross_validate, train_cohort
    from dasmil.train import fit
    from dasmil.train.recipes import list_recipes, load_recipe
    from dasmil.types import Bag, Explanation, Output

# Public names and their homes; imported on first use, so that `import dasmil` and `dasmil --help` stay quick.
_HOMES = {
    "load_dataset": "dasmil.data",
    "load_cohort": "dasmil.data.cohort",
    "Bag": "dasmil.types",
    "Output": "dasmil.types",
    "fit": "dasmil.train",
    "Explanation": "dasmil.types",
    "explain": "dasmil.attribution",
    "create_model": "dasmil.models",
    "list_models": "dasmil.models",
    "list_recipes": "dasmil.train.recipes",
    "load_recipe": "dasmil.train.recipes",
    "Run": "dasmil.runs",
    "load_model": "dasmil.runs",
    "BagSpec": "dasmil.study.spec",
    "CohortSpec": "dasmil.study.spec",
    "train_cohort": "dasmil.study.training",
    "cross_validate": "dasmil.study.training",
    "search": "dasmil.study.search",
    "compare": "dasmil.study.compare",
    "evaluate": "dasmil.study.apply",
    "predict": "dasmil.study.apply",
    "read_bag": "dasmil.data.store",
    "write_bag": "dasmil.data.store",
}

__all__ = [
    "Bag",
    "BagSpec",
    "CohortSpec",
    "Explanation",
    "Output",
    "Run",
    "__version__",
    "compare",
    "create_model",
    "cross_validate",
    "evaluate",
    "explain",
    "fit",
    "list_models",
    "list_recipes",
    "load_cohort",
    "load_dataset",
    "load_model",
    "load_recipe",
    "predict",
    "read_bag",
    "search",
    "train_cohort",
    "write_bag",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dasmil' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

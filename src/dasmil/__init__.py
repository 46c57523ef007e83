"""Deep multiple instance learning with distance-aware self-attention (DAS-MIL)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # a type checker reads these; at run time a name is imported on first use, see _HOMES
    from dasmil.attribution import explain
    from dasmil.data import load_dataset
    from dasmil.data.annotations import read_annotations
    from dasmil.data.cohort import load_cohort
    from dasmil.data.loader import BagDataset, collate_bags
    from dasmil.data.restrict import label_tiles
    from dasmil.data.store import read_bag, write_bag
    from dasmil.models import create_model, list_models
    from dasmil.models.published import load_published
    from dasmil.runs import Run, load_model
    from dasmil.study.apply import evaluate, predict
    from dasmil.study.classifier import MILClassifier
    from dasmil.study.compare import compare
    from dasmil.study.explaining import explain_bag
    from dasmil.study.figure import make_figure, plot_map, plot_roc
    from dasmil.study.hub import from_pretrained, save_pretrained
    from dasmil.study.keys import key_instances
    from dasmil.study.localise import localise
    from dasmil.study.lookup import find_bag
    from dasmil.study.questions import LabelledBags, learned_distances, space_test
    from dasmil.study.search import search
    from dasmil.study.space import space_study
    from dasmil.study.spec import BagSpec, CohortSpec
    from dasmil.study.training import cross_validate, train_cohort
    from dasmil.study.viewing import view
    from dasmil.tasks import ClassTarget, GradeTarget, NumberTarget, Task, multilabel, ordinal, regression, survival
    from dasmil.train import fit
    from dasmil.train.recipes import list_recipes, load_recipe
    from dasmil.types import Bag, Explanation, Output

# Public names and their homes; imported on first use, so that `import dasmil` and `dasmil --help` stay quick.
_HOMES = {
    "load_dataset": "dasmil.data",
    "load_cohort": "dasmil.data.cohort",
    "Bag": "dasmil.types",
    "BagDataset": "dasmil.data.loader",
    "collate_bags": "dasmil.data.loader",
    "MILClassifier": "dasmil.study.classifier",
    "Output": "dasmil.types",
    "fit": "dasmil.train",
    "Explanation": "dasmil.types",
    "explain": "dasmil.attribution",
    "create_model": "dasmil.models",
    "list_models": "dasmil.models",
    "load_published": "dasmil.models.published",
    "list_recipes": "dasmil.train.recipes",
    "load_recipe": "dasmil.train.recipes",
    "Run": "dasmil.runs",
    "load_model": "dasmil.runs",
    "BagSpec": "dasmil.study.spec",
    "CohortSpec": "dasmil.study.spec",
    "train_cohort": "dasmil.study.training",
    "cross_validate": "dasmil.study.training",
    "search": "dasmil.study.search",
    "save_pretrained": "dasmil.study.hub",
    "from_pretrained": "dasmil.study.hub",
    "compare": "dasmil.study.compare",
    "evaluate": "dasmil.study.apply",
    "predict": "dasmil.study.apply",
    "find_bag": "dasmil.study.lookup",
    "explain_bag": "dasmil.study.explaining",
    "LabelledBags": "dasmil.study.questions",
    "learned_distances": "dasmil.study.questions",
    "space_test": "dasmil.study.questions",
    "space_study": "dasmil.study.space",
    "key_instances": "dasmil.study.keys",
    "localise": "dasmil.study.localise",
    "make_figure": "dasmil.study.figure",
    "plot_map": "dasmil.study.figure",
    "plot_roc": "dasmil.study.figure",
    "read_annotations": "dasmil.data.annotations",
    "label_tiles": "dasmil.data.restrict",
    "view": "dasmil.study.viewing",
    "Task": "dasmil.tasks",
    "ClassTarget": "dasmil.tasks",
    "GradeTarget": "dasmil.tasks",
    "NumberTarget": "dasmil.tasks",
    "survival": "dasmil.tasks",
    "regression": "dasmil.tasks",
    "multilabel": "dasmil.tasks",
    "ordinal": "dasmil.tasks",
    "read_bag": "dasmil.data.store",
    "write_bag": "dasmil.data.store",
}

__all__ = [
    "Bag",
    "BagDataset",
    "BagSpec",
    "ClassTarget",
    "CohortSpec",
    "Explanation",
    "GradeTarget",
    "LabelledBags",
    "MILClassifier",
    "NumberTarget",
    "Output",
    "Run",
    "Task",
    "__version__",
    "collate_bags",
    "compare",
    "create_model",
    "cross_validate",
    "evaluate",
    "explain",
    "explain_bag",
    "find_bag",
    "fit",
    "from_pretrained",
    "key_instances",
    "label_tiles",
    "learned_distances",
    "list_models",
    "list_recipes",
    "load_cohort",
    "load_dataset",
    "load_model",
    "load_published",
    "load_recipe",
    "localise",
    "make_figure",
    "multilabel",
    "ordinal",
    "plot_map",
    "plot_roc",
    "predict",
    "read_annotations",
    "read_bag",
    "regression",
    "save_pretrained",
    "search",
    "space_study",
    "space_test",
    "survival",
    "train_cohort",
    "view",
    "write_bag",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dasmil' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

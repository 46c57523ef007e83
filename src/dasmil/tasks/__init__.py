"""Tasks: what is asked of a bag; a target says what outputs of a model mean, its loss and its metrics."""

from dasmil.tasks.classes import ClassTarget
from dasmil.tasks.numbers import NumberTarget
from dasmil.tasks.records import task_from
from dasmil.tasks.registry import KINDS, TARGETS
from dasmil.tasks.summary import Told, mean_over_folds, summarise_outputs, summarise_task, task_sets
from dasmil.tasks.target import EpochLoss, Target, TargetLoss
from dasmil.tasks.task import Task, classification, multilabel, regression, resolve_task, survival
from dasmil.tasks.times import TimeTarget

__all__ = [
    "KINDS", "TARGETS", "ClassTarget", "EpochLoss", "NumberTarget", "Target", "TargetLoss", "Task", "TimeTarget",
    "Told", "classification", "mean_over_folds", "multilabel", "regression", "resolve_task", "summarise_outputs",
    "summarise_task", "survival", "task_from", "task_sets",
]  # fmt: skip

"""Tasks: what is asked of a bag; a target says what outputs of a model mean, its loss and its metrics."""

from dasmil.tasks.classes import ClassTarget
from dasmil.tasks.grades import GradeTarget
from dasmil.tasks.numbers import NumberTarget
from dasmil.tasks.records import task_from
from dasmil.tasks.registry import TARGET_OF_TASK, TARGETS, register, task_kinds
from dasmil.tasks.summary import Told, mean_over_folds, summarise_outputs, summarise_task, task_sets
from dasmil.tasks.target import Detectable, EpochLoss, LabelColumn, Oddity, Target, TargetLoss, concordance
from dasmil.tasks.task import Task, classification, multilabel, ordinal, regression, resolve_task, survival
from dasmil.tasks.times import TimeTarget

__all__ = [
    "TARGETS",
    "TARGET_OF_TASK",
    "ClassTarget",
    "Detectable",
    "EpochLoss",
    "GradeTarget",
    "LabelColumn",
    "NumberTarget",
    "Oddity",
    "Target",
    "TargetLoss",
    "Task",
    "TimeTarget",
    "Told",
    "classification",
    "concordance",
    "mean_over_folds",
    "multilabel",
    "ordinal",
    "register",
    "regression",
    "resolve_task",
    "summarise_outputs",
    "summarise_task",
    "survival",
    "task_from",
    "task_kinds",
    "task_sets",
]  # fmt: skip

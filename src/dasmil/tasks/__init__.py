"""Tasks: what is asked of a bag, how outputs answer it, and how well; losses live in `train`."""

from dasmil.tasks.records import task_from
from dasmil.tasks.summary import Told, mean_over_folds, summarise_outputs, summarise_task, task_sets
from dasmil.tasks.targets import ClassTarget, NumberTarget, Target, TimeTarget
from dasmil.tasks.task import KINDS, Task, multilabel, regression, resolve_task, survival

__all__ = [
    "KINDS", "ClassTarget", "NumberTarget", "Target", "Task", "TimeTarget", "Told", "mean_over_folds", "multilabel",
    "regression", "resolve_task", "summarise_outputs", "summarise_task", "survival", "task_from", "task_sets",
]  # fmt: skip

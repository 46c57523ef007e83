"""Tasks: what is asked of a bag, how outputs answer it, and how well; losses live in `train`."""

from dasmil.tasks.records import task_from
from dasmil.tasks.summary import summarise_task
from dasmil.tasks.targets import ClassTarget, NumberTarget, Target, TimeTarget
from dasmil.tasks.task import KINDS, Task, multilabel, regression, resolve_task, survival

__all__ = [
    "KINDS", "ClassTarget", "NumberTarget", "Target", "Task", "TimeTarget", "multilabel", "regression", "resolve_task",
    "summarise_task", "survival", "task_from",
]  # fmt: skip

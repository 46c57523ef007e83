"""The kinds of targets, and of tasks, by name."""

from __future__ import annotations

from dasmil.tasks.classes import ClassTarget
from dasmil.tasks.grades import GradeTarget
from dasmil.tasks.numbers import NumberTarget
from dasmil.tasks.target import Target
from dasmil.tasks.times import TimeTarget

TARGETS: dict[str, type[Target]] = {}
"""By the kind that records name."""
TARGET_OF_TASK: dict[str, type[Target]] = {}
"""By the task that has this target alone."""
SEVERAL = "multilabel"
"""The task with several targets."""


def register(target: type[Target]) -> None:
    """Make a target known to label tables, options, records, training and reports."""
    TARGETS[target.kind] = target
    TARGET_OF_TASK[target.task] = target


def task_kinds() -> tuple[str, ...]:
    """What ``--task`` may be: one target of a kind, or several targets."""
    return (*TARGET_OF_TASK, SEVERAL)


register(ClassTarget)
register(TimeTarget)
register(NumberTarget)
register(GradeTarget)

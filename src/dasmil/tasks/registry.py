"""The kinds of targets, and of tasks, by name."""

from __future__ import annotations

from dasmil.tasks.classes import ClassTarget
from dasmil.tasks.numbers import NumberTarget
from dasmil.tasks.target import Target
from dasmil.tasks.times import TimeTarget

_ALL: tuple[type[Target], ...] = (
    ClassTarget,
    TimeTarget,
    NumberTarget,
)
TARGETS: dict[str, type[Target]] = {target.kind: target for target in _ALL}
"""By the kind that records name."""
KINDS = (*(target.task for target in _ALL), "multilabel")
"""What ``--task`` may be: one target of a kind, or several targets."""

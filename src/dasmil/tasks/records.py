"""The task that a run noted, read back: every value of the kind and in the range that a task has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dasmil.errors import DataError, shown
from dasmil.tasks.registry import SEVERAL, TARGETS, task_kinds
from dasmil.tasks.target import Target
from dasmil.tasks.task import Task, classification

MOST_TARGETS = 1000


def task_from(record: Mapping[str, Any] | None, classes: Sequence[str] = ()) -> Task:
    """The task that a run noted; without one it is classification, of classes with these names."""
    if not record or record.get("kind") == "classification":
        return classification(classes)
    kind, targets = record.get("kind"), record.get("targets")
    if kind not in task_kinds() or not isinstance(targets, list) or not 0 < len(targets) <= MOST_TARGETS:
        raise _broken(record, f"expected one of {', '.join(task_kinds())}, with its targets")
    found = tuple(_target(target) for target in targets)
    columns = [column for target in found for column in target.columns]
    fits = all(target.of_several for target in found)
    if kind != SEVERAL:
        fits = len(found) == 1 and found[0].task == kind
    if len(set(columns)) < len(columns) or not fits:
        raise _broken(record, f"its targets are not those of {kind}")
    return Task(kind, found)


def _target(record: Any) -> Target:
    kind = record.get("kind") if isinstance(record, dict) else None
    if not isinstance(kind, str) or kind not in TARGETS:
        raise _broken(record, f"expected a target of the kinds {', '.join(TARGETS)}")
    try:
        target: Target = TypeAdapter(TARGETS[kind]).validate_python(
            {key: value for key, value in record.items() if key != "kind"}
        )
    except (ValidationError, OverflowError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        raise _broken(record, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if not target.valid:
        raise _broken(record, "its numbers or classes are none that training writes")
    return target


def _broken(record: Any, what: str) -> DataError:
    return DataError(f"the task of the run is {shown(record, 100)}: {what}; train again")

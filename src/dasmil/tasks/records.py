"""The task that a run noted, read back: every value of the kind and in the range that a task has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dasmil.errors import DataError, shown
from dasmil.tasks.classes import ClassTarget
from dasmil.tasks.numbers import NumberTarget
from dasmil.tasks.registry import KINDS, TARGETS
from dasmil.tasks.target import Target
from dasmil.tasks.task import Task, classification
from dasmil.tasks.times import TimeTarget

_TARGETS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in TARGETS.items()}
MOST_TARGETS, MOST_BINS = 1000, 1000


def task_from(record: Mapping[str, Any] | None, classes: Sequence[str] = ()) -> Task:
    """The task that a run noted; without one it is classification, of classes with these names."""
    if not record or record.get("kind") == "classification":
        return classification(classes)
    kind, targets = record.get("kind"), record.get("targets")
    if kind not in KINDS or not isinstance(targets, list) or not 0 < len(targets) <= MOST_TARGETS:
        raise _broken(record, f"expected one of {', '.join(KINDS)}, with its targets")
    found = tuple(_target(target) for target in targets)
    columns = [column for target in found for column in target.columns]
    fits = all(target.task != "survival" for target in found)
    if kind != "multilabel":
        fits = len(found) == 1 and found[0].task == kind
    if len(set(columns)) < len(columns) or not fits:
        raise _broken(record, f"its targets are not those of {kind}")
    return Task(kind, found)


def _target(record: Any) -> Target:
    kind = record.get("kind") if isinstance(record, dict) else None
    if not isinstance(kind, str) or kind not in _TARGETS:
        raise _broken(record, f"expected a target of the kinds {', '.join(_TARGETS)}")
    try:
        target: Target = _TARGETS[kind].validate_python({key: value for key, value in record.items() if key != "kind"})
    except (ValidationError, OverflowError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        raise _broken(record, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if not _fits(target):
        raise _broken(record, "its numbers or classes are none that training writes")
    return target


def _fits(target: Target) -> bool:
    if isinstance(target, ClassTarget):
        return 2 <= len(set(target.classes)) == len(target.classes)
    if isinstance(target, NumberTarget):
        return (target.mean is None or isfinite(target.mean)) and (target.sd is None or 0 < target.sd < float("inf"))
    if not isinstance(target, TimeTarget):
        return True
    return 1 <= target.bins <= MOST_BINS >= len(target.edges) and _rises(target.edges) and _rises(target.times)


def _rises(numbers: Sequence[float]) -> bool:
    """Whether numbers are finite, above 0 (a last follow-up may be at 0) and in their order."""
    return all(isfinite(n) and n >= 0 for n in numbers) and all(a < b for a, b in pairwise(numbers))


def _broken(record: Any, what: str) -> DataError:
    return DataError(f"the task of the run is {shown(record, 100)}: {what}; train again")

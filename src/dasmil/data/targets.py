"""Targets in a label table: a time and an event, a number, or several columns of classes and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dasmil.data.columns import LARGEST
from dasmil.data.labels import LabelRow, TableRow, as_number, class_names, filled, need_values, read_slides
from dasmil.errors import DataError, InputError, named, shown, unknown_name
from dasmil.tasks import TARGET_OF_TASK, TARGETS, LabelColumn, Target, Task, multilabel, survival, task_kinds

EVENT_WORDS = {
    "1": 1, "1.0": 1, "true": 1, "yes": 1, "y": 1, "t": 1, "event": 1, "dead": 1, "deceased": 1, "died": 1, "death": 1,
    "relapse": 1, "recurrence": 1, "progression": 1, "progressed": 1, "1:deceased": 1, "1:recurred": 1,
    "0": 0, "0.0": 0, "false": 0, "no": 0, "n": 0, "f": 0, "censored": 0, "alive": 0, "living": 0, "none": 0,
    "0:living": 0, "0:alive": 0,
}  # fmt: skip
FEW_VALUES = 10
"""A column of numbers with no more different values than this is taken as classes, unless it is said otherwise."""
Values = tuple[tuple[str, float | None], ...]


@dataclass(frozen=True)
class Request:
    """What the user said about the task: its kind and its columns; None where it is to be seen in the table.

    targets: columns, each "name", "name:number" or "name:classes".
    """

    kind: str
    time: str | None = None
    event: str | None = None
    unit: str = ""
    method: str = "hazards"
    bins: int | None = None
    targets: tuple[str, ...] = ()
    loss: str = "huber"
    classes: tuple[str, ...] | None = None
    """Grades in their order; None: numbers by value, words by alphabet."""
    times: tuple[str, ...] | None = None
    """Where figures are given; None: at quarters of the event times of the table."""

    @staticmethod
    def of(
        task: str | None, time: str | None, event: str | None, targets: Sequence[str] | None, **how: Any
    ) -> Request | None:
        """From options; None for classification. Columns say which task it is where it was not named."""
        names = tuple(targets or ())
        if task is not None and task not in task_kinds():
            raise unknown_name("task", task, task_kinds())
        kind = task or ("survival" if time or event else "multilabel" if len(names) > 1 else None)
        kind = kind or ("regression" if names else "classification")
        if kind == "classification":
            if time or event or names:
                raise InputError("the task is classification, whose column is --label-column: leave the others out")
            return None
        if kind == "survival" and (time is None or event is None or names):
            raise InputError("survival needs --time-column and --event-column, and no --target-columns")
        if kind != "survival" and (time or event or not names):
            raise InputError(f"{kind} needs --target-columns, and neither --time-column nor --event-column")
        if kind != "multilabel" and len(names) > 1:
            raise InputError(f"{kind} has one target, found {named(names)}: several are --task multilabel")
        return Request(kind, time, event, targets=names, **{k: v for k, v in how.items() if v is not None})


def read_task_labels(
    path: Path, asked: Request, known: Task | None = None, **columns: Any
) -> tuple[list[LabelRow], Task]:
    """The rows of a label table with the values of a task, and the task; known: that of a run, whose classes count.

    A slide without any value keeps an empty label, and the cohort's report names it.
    """
    header, rows = read_slides(path, **columns)
    if asked.kind == "survival":
        return _follow_up(path, header, rows, asked)
    task = known or _task(path, header, rows, asked)
    used = [name for name in task.columns if name in header]
    need_values(path, [(row.number, row.cells) for row in rows], used)
    found: list[LabelRow] = []
    for row in rows:
        values: Values = tuple((t.name, _value(path, row, t)) for t in task.targets)
        there = any(value is not None for _, value in values)
        found.append(replace(row.of, targets=values, label="" if there else None))
    if not any(row.label is not None for row in found):
        raise DataError(f"{path}: {named(task.columns)} is empty in every row; name another column")
    strata = task.strata(np.array([[np.nan if v is None else v for _, v in row.targets or ()] for row in found]))
    words = task.targets[0].strata_names
    return [
        row if row.label is None else replace(row, label=words[int(k)]) for row, k in zip(found, strata, strict=True)
    ], task


def _follow_up(path: Path, header: list[str], rows: Sequence[TableRow], asked: Request) -> tuple[list[LabelRow], Task]:
    assert asked.time is not None
    assert asked.event is not None
    for name, flag in ((asked.time, "--time-column"), (asked.event, "--event-column")):
        if name not in header:
            raise InputError(f"{path}: no column {shown(name)}; it has {named(header)}. Name it with {flag}")
    need_values(path, [(row.number, row.cells) for row in rows], [asked.time, asked.event])
    words = _event_words(path, rows, asked.event)
    found: list[LabelRow] = []
    for row in rows:
        time, event = filled(row.cells[asked.time]), filled(row.cells[asked.event])
        if time is None and event is None:
            found.append(row.of)
            continue
        if time is None or event is None:
            missing = asked.time if time is None else asked.event
            raise DataError(
                f"{path}, line {row.number}: {shown(missing)} is empty, but the other of time and event is not; fill "
                "it in, or empty both to leave the slide out"
            )
        number = as_number(time)
        if number is None or not abs(number) < LARGEST:
            raise DataError(
                f"{path}, line {row.number}: the time is {shown(time)}, expected a number without its unit (say the "
                "unit with --time-unit)"
            )
        if number < 0:
            raise DataError(f"{path}, line {row.number}: the time is {time}, expected 0 or more")
        seen = words[event.lower()]
        values: Values = ((asked.time, number), (asked.event, float(seen)))
        found.append(replace(row.of, targets=values, label="event" if seen else "censored"))
    _check_events(path, found, asked)
    task = survival(
        asked.time, asked.event, method=asked.method, bins=asked.bins, unit=asked.unit,  # pyright: ignore
        times=_times(asked.times, found),
    )  # fmt: skip
    return found, task


def _times(asked: Sequence[str] | None, rows: Sequence[LabelRow]) -> list[float]:
    """The times that were asked for, else three that split the events of the whole table: all folds share them."""
    if asked is None:
        known = [row.targets for row in rows if row.targets is not None]
        seen = [float(time or 0.0) for (_, time), (_, event) in known if event == 1]
        return [float(f"{t:.3g}") for t in np.quantile(seen, [0.25, 0.5, 0.75]) if t > 0]
    numbers = [as_number(text) for text in asked]
    if None in numbers:
        raise InputError(
            f"--times {','.join(asked)}: expected numbers separated by commas, in the unit of the time column"
        )
    return [number for number in numbers if number is not None]


def _event_words(path: Path, rows: Sequence[TableRow], column: str) -> dict[str, int]:
    """What the words of the event column mean."""
    found = list(dict.fromkeys(cell for row in rows if (cell := filled(row.cells[column])) is not None))
    unknown = [cell for cell in found if cell.lower() not in EVENT_WORDS]
    if unknown or len({cell.lower() for cell in found}) > 2:
        raise DataError(
            f"{path}: the event column {shown(column)} holds {named(map(shown, found))}, expected two values that say "
            "whether the event was seen: 1 and 0, true and false, yes and no, dead and alive, event and censored"
        )
    return {cell.lower(): EVENT_WORDS[cell.lower()] for cell in found}


def _check_events(path: Path, rows: Sequence[LabelRow], asked: Request) -> None:
    events = sum(row.label == "event" for row in rows)
    known = sum(row.label is not None for row in rows)
    if not known:
        raise DataError(f"{path}: {shown(asked.time)} and {shown(asked.event)} are empty in every row")
    if events < 2:
        found = "all slides are censored" if not events else "one slide has the event"
        raise DataError(
            f"{path}: {found} ({known} rows, column {shown(asked.event)}); nothing about times can be learned without "
            "events: check the column, or gather longer"
        )


def _task(path: Path, header: list[str], rows: Sequence[TableRow], asked: Request) -> Task:
    targets: list[Target] = []
    for text in asked.targets:
        name, _, kind = text.rpartition(":") if text not in header and ":" in text else (text, "", "")
        if name not in header:
            raise InputError(f"{path}: no column {shown(name)} for the target; it has {named(header)}")
        known = [name for name, target in TARGETS.items() if target.of_several]
        if kind not in ("", *known):
            raise InputError(f"--target-columns {text}: expected {' or '.join(f'{name}:{k}' for k in known)}")
        if asked.kind in TARGET_OF_TASK:
            kind = TARGET_OF_TASK[asked.kind].kind
        targets.append(_target(path, name, kind, [cell for row in rows if (cell := filled(row.cells[name]))], asked))
    return Task(asked.kind, tuple(targets)) if asked.kind in TARGET_OF_TASK else multilabel(targets)


def _target(path: Path, name: str, kind: str, cells: Sequence[str], asked: Request) -> Target:
    """What a column holds: numbers, unless there are words or few different values."""
    if not cells:
        raise DataError(f"{path}: the target {shown(name)} is missing in every row: fill it in, or leave it out")
    different = dict.fromkeys(cells)
    if len(different) == 1:
        raise DataError(
            f"{path}: the target {shown(name)} is {shown(cells[0])} in every row: there is nothing to learn"
        )
    numbers = all(as_number(cell) is not None for cell in different)
    kind = kind or ("number" if numbers and len(different) > FEW_VALUES else "classes")
    column = LabelColumn(name, lambda: class_names(different, asked.classes))
    if asked.kind in TARGET_OF_TASK:
        column = replace(column, unit=asked.unit, loss=asked.loss)
    return TARGETS[kind].of_column(column)


def _value(path: Path, row: TableRow, target: Target) -> float | None:
    if target.name not in row.cells:
        raise InputError(f"{path}: no column {shown(target.name)} for the target; it has {named(row.cells)}")
    cell = filled(row.cells[target.name])
    if cell is None:
        return None
    value = target.value_of(cell, as_number(cell))
    if value is None or not abs(value) < LARGEST:
        expected = named(target.classes) if target.classes else f"a number without its unit, below {LARGEST:g}"
        raise DataError(f"{path}, line {row.number}: {shown(target.name)} is {shown(cell)}, expected {expected}")
    return value

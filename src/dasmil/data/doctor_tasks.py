"""The doctor's look at follow-up, numbers and several targets: what is there, what is wrong, what it can show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dasmil.data.match import Match, shortened
from dasmil.data.showing import scored_parts
from dasmil.stats import FollowUp, auroc_to_find, c_index_to_tell, correlation_to_tell, kaplan_meier, smallest_auroc
from dasmil.tasks import ClassTarget, NumberTarget, Task, TimeTarget

Array = NDArray[np.float64]
Wrong = tuple[Literal["error", "warning"], str, str, tuple[str, ...]]
FEW_EVENTS = 10
FAR = 10.0
"""A number so many times the spread of the middle half away from the median has most likely another unit."""


@dataclass(frozen=True)
class TaskShowing:
    """What held-out patients can show of a target: its figure is better than chance from ``smallest`` on (None: never);
    four of five such cohorts tell a true one of ``to_find``.
    """

    target: str
    figure: str
    where: str
    patients: int
    rarest: int | None
    smallest: float | None
    to_find: float | None

    @property
    def text(self) -> str:
        rare = "" if self.rarest is None else f", {self.rarest} {'with the event' if self.of_times else 'of one class'}"
        who = f"{self.where} ({self.patients} patients{rare})"
        if self.smallest is None:
            return f"{who}: never"
        likely = f", likely if the true one is {self.to_find:.2f} or more" if self.to_find is not None else ""
        return f"{who}: from {self.smallest:.2f} on{likely}"

    @property
    def of_times(self) -> bool:
        return self.figure == "C-index"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def check_task(matched: Match, task: Task, *, per_patient: bool) -> tuple[list[str], list[TaskShowing], list[Wrong]]:
    """Lines for people, what the cohort can show, and findings. One row a patient, that of its first slide."""
    report = matched.report
    slides = {slide.patient or f"slide {slide.name}": slide for slide in reversed(matched.slides)}
    owners = list(reversed(slides))
    first = [slides[owner] for owner in owners]
    values = numbers_of(slide.targets or () for slide in first)
    splits: dict[str, list[int]] = {}
    for number, slide in enumerate(first):
        if slide.split:
            splits.setdefault(slide.split, []).append(number)
    head = f"{report.n_slides} slides of {report.n_patients} patients"
    if splits:
        head += "; " + ", ".join(f"{name} {len(part)}" for name, part in splits.items())
    lines = [head, *described(task, values)]
    shows = what_task_shows(task, owners, values, splits)
    lines += showing_lines(task, shows)
    wrong = [*disagreeing(matched, task, per_patient), *_empty_parts(task, values, splits)]
    for k, target in enumerate(task.targets):
        wrong += _odd(target, values[:, _columns(task, k)], [slide.name for slide in first])
    return lines, shows, wrong


def what_task_shows(
    task: Task, patients: Sequence[str], values: Array, splits: Mapping[str, Sequence[int]]
) -> list[TaskShowing]:
    """What validation, test and five folds can show of each target, as `dasmil train` would split these bags.

    values [n, columns]; one bag a patient. splits: bag numbers as the label table has them.
    """
    parts = scored_parts(patients, task.strata(values).tolist(), splits)
    return [found for k in range(len(task.targets)) for found in _shows(task, k, values, parts)]


def showing_lines(task: Task, shows: Sequence[TaskShowing]) -> list[str]:
    """A sentence for each target."""
    lines = []
    for name in dict.fromkeys(show.target for show in shows):
        own = [show for show in shows if show.target == name]
        of = f" of {name!r}" if len(task.targets) > 1 else ""
        figure = f"{'An' if own[0].figure == 'AUROC' else 'A'} {own[0].figure}{of}"
        chance = "0" if own[0].figure == "correlation" else "0.5"
        lines.append(f"{figure} is told from {chance} (95 %) on {'; on '.join(show.text for show in own)}")
    return lines


def _columns(task: Task, number: int) -> slice:
    return list(task.parts())[number][1]


def numbers_of(targets: Iterable[Sequence[tuple[str, float | None]]]) -> Array:
    """Values of targets [n, columns], NaN where one is missing."""
    return np.array([[np.nan if value is None else value for _, value in row] for row in targets])


def described(task: Task, values: Array) -> list[str]:
    """What is known of each target, a line each; values [n, columns], one row a patient."""
    return [_described(task, number, values) for number in range(len(task.targets))]


def _described(task: Task, number: int, values: Array) -> str:
    target, own = task.targets[number], values[:, _columns(task, number)]
    known = own[np.isfinite(own).all(1)]
    if not len(known):
        return f"{target.name}: missing of all {len(own)}"
    unit = f" {target.unit}" if not isinstance(target, ClassTarget) and target.unit else ""
    missing = f", missing of {len(own) - len(known)}" if len(known) < len(own) else ""
    if isinstance(target, TimeTarget):
        follow = FollowUp(known[:, 0], known[:, 1] == 1)
        events = int(follow.events.sum())
        line = f"Events: {events} of {len(known)} patients ({events / len(known):.0%}), {len(known) - events} censored"
        line += f"; times from {follow.times.min():g} to {follow.times.max():g}{unit}"
        middle, watched = kaplan_meier(follow).median, kaplan_meier(FollowUp(follow.times, ~follow.events)).median
        line += (
            f"; half have had the event by {middle:g}" if np.isfinite(middle) else "; fewer than half have the event"
        )
        return line + (f"; half were watched for {watched:g}" if np.isfinite(watched) else "") + missing
    if isinstance(target, NumberTarget):
        y = known[:, 0]
        return (
            f"{target.name}: {y.min():g} to {y.max():g}{unit}, mean {y.mean():.4g}, standard deviation {y.std():.3g}, "
            f"{len(np.unique(y))} different values{missing}"
        )
    assert isinstance(target, ClassTarget)
    counts = ", ".join(f"{int((known[:, 0] == c).sum())} {name}" for c, name in enumerate(target.classes))
    return f"{target.name}: {counts}{missing}"


def _shows(
    task: Task, number: int, values: Array, parts: Sequence[tuple[str, list[list[int]]]]
) -> Iterator[TaskShowing]:
    target, own = task.targets[number], values[:, _columns(task, number)]
    for where, sets in parts:
        known = [rows[np.isfinite(rows).all(1)] for rows in (own[part] for part in sets)]
        patients = sum(len(rows) for rows in known)
        if isinstance(target, TimeTarget):
            follows = [FollowUp(rows[:, 0], rows[:, 1] == 1) for rows in known if len(rows)]
            events = sum(int(one.events.sum()) for one in follows)
            yield TaskShowing(target.name, "C-index", where, patients, events, *c_index_to_tell(follows))
        elif isinstance(target, NumberTarget):
            found = correlation_to_tell([len(rows) for rows in known])
            yield TaskShowing(target.name, "correlation", where, patients, None, *found)
        else:
            assert isinstance(target, ClassTarget)
            counts = np.array([[int((rows[:, 0] == c).sum()) for c in range(len(target.classes))] for rows in known])
            rare = int(counts.sum(0).argmin()) if len(target.classes) > 2 else 1
            pairs = [(int(row[rare]), int(row.sum() - row[rare])) for row in counts]
            rarest = int(counts.sum(0)[rare])
            yield TaskShowing(
                target.name, "AUROC", where, patients, rarest, smallest_auroc(pairs), auroc_to_find(pairs)
            )


def disagreeing(matched: Match, task: Task, per_patient: bool) -> Iterator[Wrong]:
    """Patients whose slides have different values: one bag a patient could not have both, and nobody dies twice."""
    groups: dict[str, list[Any]] = {}
    for slide in matched.slides:
        if slide.patient is not None:
            groups.setdefault(slide.patient, []).append(slide)
    differ = {who: slides for who, slides in groups.items() if len({slide.targets for slide in slides}) > 1}
    if not differ:
        return
    who, slides = next(iter(differ.items()))
    other = next(slide for slide in slides if slide.targets != slides[0].targets)
    shown = ", ".join(
        f"{slide.name}: " + " ".join(f"{n} {'none' if v is None else f'{v:g}'}" for n, v in slide.targets or ())
        for slide in (slides[0], other)
    )
    must = per_patient or task.kind == "survival"
    what = "write the same in all rows of a patient" if must else "training with --per-patient would stop"
    message = f"{len(differ)} patients have slides with different values, for example {who} ({shown}): {what}"
    yield "error" if must else "warning", "slides disagree", message, tuple(s.name for s in slides)


def _empty_parts(task: Task, values: Array, splits: dict[str, list[int]]) -> Iterator[Wrong]:
    """Sets of the split column in which nothing can be learned or scored."""
    target = task.targets[0]
    if not isinstance(target, TimeTarget):
        return
    for name, part in splits.items():
        events = int((values[part, 1] == 1).sum())
        if name == "train" and events < 2:
            yield "error", "splits", f"{events} training patients have the event, expected two or more", ()
        elif not events:
            yield "warning", "splits", f"no patient of {name} has the event: there is no C-index", ()


def _odd(target: Any, values: Array, names: Sequence[str]) -> Iterator[Wrong]:
    """Values that are most likely wrong."""
    if isinstance(target, ClassTarget):
        return
    y = values[:, 0]
    if isinstance(target, TimeTarget):
        events = int((values[:, 1] == 1).sum())
        if events < FEW_EVENTS:
            yield "warning", "few events", f"{events} patients have the event: next to nothing can be told", ()
        zero = [name for name, time in zip(names, y, strict=True) if time == 0]
        if zero:
            message = f"{len(zero)} slides have a time of 0 and say nothing of an order: {shortened(zero)}"
            yield "warning", "time 0", message, tuple(zero)
    known = y[np.isfinite(y)]
    low, middle, high = np.quantile(known, [0.25, 0.5, 0.75])
    far = [i for i, v in enumerate(y) if high > low and abs(v - middle) > FAR * (high - low)]
    if far:
        listed = ", ".join(f"{names[i]} ({y[i]:g})" for i in far[:3])
        message = (
            f"{len(far)} slides have a {target.name} far from the others', {low:g} to {high:g} in the middle half: "
        )
        yield "warning", "far off", f"{message}{listed}; is the unit the same?", tuple(names[i] for i in far)

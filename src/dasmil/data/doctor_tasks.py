"""The doctor's look at follow-up, numbers and several targets: what is there, what is wrong, what it can show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dasmil.data.match import Match
from dasmil.data.showing import scored_parts
from dasmil.tasks import Target, Task, TimeTarget

Array = NDArray[np.float64]
Wrong = tuple[Literal["error", "warning"], str, str, tuple[str, ...]]


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
    wrong: list[Wrong] = [*disagreeing(matched, task, per_patient), *_empty_parts(task, values, splits)]
    names = [slide.name for slide in first]
    for target, own, _ in task.parts():
        for odd in target.oddities(values[:, own], names):
            wrong.append(("warning", odd.check, odd.message, odd.slides))
    return lines, shows, wrong


def what_task_shows(
    task: Task, patients: Sequence[str], values: Array, splits: Mapping[str, Sequence[int]]
) -> list[TaskShowing]:
    """What validation, test and five folds can show of each target, as `dasmil train` would split these bags.

    values [n, columns]; one bag a patient. splits: bag numbers as the label table has them.
    """
    parts = scored_parts(patients, task.strata(values).tolist(), splits)
    return [found for target, own, _ in task.parts() for found in _shows(target, values[:, own], parts)]


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


def numbers_of(targets: Iterable[Sequence[tuple[str, float | None]]]) -> Array:
    """Values of targets [n, columns], NaN where one is missing."""
    return np.array([[np.nan if value is None else value for _, value in row] for row in targets])


def described(task: Task, values: Array) -> list[str]:
    """What is known of each target, a line each; values [n, columns], one row a patient."""
    return [target.description(values[:, own]) for target, own, _ in task.parts()]


def _shows(target: Target, values: Array, parts: Sequence[tuple[str, list[list[int]]]]) -> Iterator[TaskShowing]:
    for where, sets in parts:
        known = [rows[np.isfinite(rows).all(1)] for rows in (values[part] for part in sets)]
        found = target.detectable(known)
        patients = sum(len(rows) for rows in known)
        yield TaskShowing(target.name, found.figure, where, patients, found.rarest, found.smallest, found.to_find)


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

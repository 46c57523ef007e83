"""What a study asks of a bag: classes, a number, a time until an event, or several targets at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dasmil.errors import DataError, InputError, named, shown, unknown_name
from dasmil.stats.ranking import divide
from dasmil.tasks.classes import ClassTarget
from dasmil.tasks.grades import GradeTarget
from dasmil.tasks.numbers import NumberLoss, NumberTarget
from dasmil.tasks.registry import task_kinds
from dasmil.tasks.target import Array, Said, Target, chance_of
from dasmil.tasks.times import BINS, Method, TimeTarget

if TYPE_CHECKING:
    from dasmil.types import Bag
    from dasmil.vocabulary import Meaning


@dataclass(frozen=True)
class Task:
    """The targets of a run, each with its own part of the model's outputs; of classification the label of the bag.

    `values` and `outputs` below are arrays with a row per bag.
    """

    kind: str
    targets: tuple[Target, ...]

    @property
    def alone(self) -> Target | None:
        """The target of a task that has one by its kind; None where there may be several."""
        return None if self.kind == "multilabel" else self.targets[0]

    @property
    def labels(self) -> ClassTarget | None:
        """The classes, where the task is classification of bags by their label."""
        first = self.targets[0]
        return first if self.kind == "classification" and isinstance(first, ClassTarget) else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the values that a bag carries in ``Bag.targets``."""
        return tuple(column for target in self.targets for column in target.columns)

    @property
    def outputs(self) -> int:
        return sum(target.outputs for target in self.targets)

    @property
    def unit(self) -> str:
        """Of the time or the number that is asked for; empty where none was named, or there are several targets."""
        first = self.targets[0]
        return "" if len(self.targets) > 1 else first.unit

    @property
    def main(self) -> str:
        """The metric by which settings are compared."""
        return self.targets[0].main if len(self.targets) == 1 else "macro"

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is told of validation bags after every epoch."""
        if self.alone is not None:
            return self.alone.metrics
        return ("macro", *(f"{target.name}.{target.main}" for target in self.targets))

    @property
    def headlines(self) -> tuple[str, ...]:
        """Metrics in large figures on the report."""
        if self.alone is not None:
            return self.alone.headlines
        return (self.main, *(f"{target.name}.{target.main}" for target in self.targets))

    @property
    def trained(self) -> str:
        """What is noted of training bags after every epoch."""
        return "concordance" if self.alone is None else self.alone.trained

    @property
    def rank(self) -> str:
        """What held-out bags say of a candidate: 0.5 is chance."""
        return "concordance" if self.alone is None else self.alone.rank

    @property
    def exact(self) -> bool:
        """Whether a good model has a loss near 0."""
        return self.alone is not None and self.alone.exact

    @property
    def text(self) -> str:
        """What is asked, in one sentence."""
        first = self.targets[0]
        if isinstance(first, TimeTarget):
            return f"Task: survival {first.text}"
        return f"Task: {self.kind}; {', '.join(target.text for target in self.targets)}"

    def parts(self) -> Iterator[tuple[Target, slice, slice]]:
        """Every target with its columns among the values and its places among the outputs."""
        column = output = 0
        for target in self.targets:
            yield target, slice(column, column + len(target.columns)), slice(output, output + target.outputs)
            column, output = column + len(target.columns), output + target.outputs

    def values_of(self, bag: Bag, *, needed: bool = True) -> list[float]:
        """The values of a bag; needed: one that lacks what the task asks for is an error."""
        if self.labels is not None:
            return [float("nan") if bag.label is None else float(bag.label)]
        found = [float("nan") if (v := bag.targets.get(name)) is None else float(v) for name in self.columns]
        missing = [name for name, value in zip(self.columns, found, strict=True) if not np.isfinite(value)]
        if needed and missing and (self.kind != "multilabel" or len(missing) == len(found)):
            raise DataError(
                f"bag {bag.bag_id!r} has no value for {' and '.join(map(repr, missing))}: {self.kind} needs it in the "
                "bag's targets, for example Bag(..., targets={...})"
            )
        if self.kind == "survival" and not missing:
            _check_follow_up(bag.bag_id, *found)
        return found

    def fitted(self, values: Array) -> Task:
        """The task with what the training bags say: classes, bins of time, mean and spread of numbers."""
        return replace(self, targets=tuple(target.fitted(values[:, own]) for target, own, _ in self.parts()))

    def decided(self, values: Array, outputs: Sequence[Array]) -> Task:
        """The task with the threshold that validation bags choose for the mean of several runs, where it has one."""
        if self.alone is None:
            return self
        return replace(self, targets=(self.alone.decided(values, self.joined(outputs)),))

    def at(self, threshold: float) -> Task:
        """Classification with this threshold; other tasks have none."""
        return self if self.labels is None else replace(self, targets=(replace(self.labels, threshold=threshold),))

    def strata(self, values: Array) -> NDArray[np.int64]:
        """A number for every bag by which splits are balanced: event or not, above the median or not, the class."""
        target, own, _ = next(self.parts())
        return target.strata(values[:, own])

    def concordance(self, values: Array, outputs: Array) -> float:
        """How often of two bags the outputs have the right order, mean over targets that can say so; 0.5 is chance."""
        found = [target.concordance(values[:, own], outputs[:, out]) for target, own, out in self.parts()]
        known = [value for value in found if np.isfinite(value)]
        return float(np.mean(known)) if known else float("nan")

    def chance(self, values: Array, value: float, tried: int) -> float:
        """How often the best of so many random predictions would have this ``rank`` or more on these bags, at most."""
        if self.alone is not None:
            return self.alone.chance(values, value, tried)
        shape = (len(values), self.outputs)
        return chance_of(lambda outputs: self.concordance(values, outputs), shape, value, tried)

    def figures(
        self, values: Array, said: Said, weights: Array | None = None, reference: Array | None = None
    ) -> dict[str, Array]:
        """Every metric [draws] of what was said, under each row of the weights [draws, n] (None: each bag once).

        Of several targets under the name of each ("er.auroc"), with the macro mean of the main ones.
        """
        rows = np.ones((1, len(values))) if weights is None else weights
        if self.alone is not None:
            return self.alone.figures(values, said, rows, reference)
        if len(self.targets) == 1:
            return self.targets[0].figures_of_several(values, said, rows)
        found: dict[str, Array] = {}
        for target, own, _ in self.parts():
            one = target.figures_of_several(values[:, own], self.said_of(target, said), rows)
            found |= {f"{target.name}.{name}": value for name, value in one.items()}
        mains = np.stack([found[f"{target.name}.{target.main}"] for target in self.targets])
        known = np.isfinite(mains)
        return {"macro": divide(np.where(known, mains, 0).sum(0), known.sum(0).astype(np.float64)), **found}

    def said_of(self, target: Target, said: Said) -> Said:
        """What was said of one target."""
        names = target.said(np.zeros((1, target.outputs)))
        return {name: said[name] for name in names}

    def scores(self, values: Array, outputs: Array) -> dict[str, float]:
        """Every metric of one set of outputs."""
        return {name: float(value[0]) for name, value in self.figures(values, self.said(outputs)).items()}

    def quick(self, values: Array, outputs: Array, name: str) -> float:
        """One metric; those that an epoch asks for come without the rest."""
        if name == "concordance":
            return self.concordance(values, outputs)
        if self.alone is not None:
            return self.alone.quick(values, outputs, name)
        return self.scores(values, outputs)[name]

    def joined(self, outputs: Sequence[Array]) -> Said:
        """What several runs say together: the mean of what each says; a class is the one of the mean probability."""
        return self.mean_of([self.said(one) for one in outputs])

    def shared(self, outputs: Array) -> Said:
        """As ``said``, in the terms that all folds share: survival at the times of figures."""
        said = self.said(outputs)
        return said if self.alone is None else self.alone.shared(said)

    def mean_of(self, each: Sequence[Said]) -> Said:
        """The mean of what several runs say; a class is the one of the mean probability."""
        found = {name: np.mean([said[name] for said in each], axis=0) for name in each[0]}
        for target in self.targets:
            found |= target.mean_of(found)
        return found

    def describe(self, values: Array) -> dict[str, Any]:
        """What data.json notes about the values of a set."""
        if self.alone is not None:
            return self.alone.describe(values)
        return {"known": {name: int(np.isfinite(values[:, k]).sum()) for k, name in enumerate(self.columns)}}

    def said(self, outputs: Array) -> Said:
        """What outputs [..., outputs] mean, by name and in the unit of each target."""
        return {name: v for target, _, out in self.parts() for name, v in target.said(outputs[..., out]).items()}

    def output_names(self) -> list[str]:
        """What each output of a model is called in an explanation; a single one is number 1, its negative number 0."""
        if len(self.targets) == 1:
            return self.targets[0].output_names()
        return [f"{t.name}{f' {k}' if t.outputs > 1 else ''}" for t in self.targets for k in range(t.outputs)]

    def known_text(self, values: Array) -> str | None:
        """What is known of one bag, from its values [columns], in a few words; None where nothing is."""
        found = [text for target, own, _ in self.parts() if (text := target.known_text(values[own]))]
        return ", ".join(found) or None

    def meaning(self, output: int) -> Meaning:
        """What one output says, for accounts of it; of a single one number 1 is meant, too."""
        for target, _, out in self.parts():
            if out.start <= output < out.stop or self.outputs == 1:
                return target.meaning(0 if self.outputs == 1 else output - out.start)
        raise unknown_name("output", str(output), [str(k) for k in range(self.outputs)])

    def answers(self, outputs: Array) -> Array:
        """The main answer of each target, [n] for one target, else [n, targets]: risk, probability, number.

        Of classes one probability each, where there are more than two and the task is classification.
        """
        if self.alone is not None:
            return self.alone.answer(outputs)
        found = [next(iter(target.said(outputs[..., out]).values())) for target, _, out in self.parts()]
        return found[0] if len(found) == 1 else np.stack(found, axis=-1)

    def record(self) -> dict[str, Any]:
        """Plain values, from which ``task_from`` makes it again."""
        return {"kind": self.kind, "targets": [target.record() for target in self.targets]}


def classification(classes: Sequence[str] = ()) -> Task:
    """One class per bag, the bag's ``label``; classes: their names, empty before the training bags have said them."""
    return Task("classification", (ClassTarget("label", tuple(classes), own=True),))


def survival(
    time: str = "time",
    event: str = "event",
    *,
    method: Method = "hazards",
    bins: int | None = None,
    unit: str = "",
    times: Sequence[float] = (),
) -> Task:
    """Times until an event, censored or not; method "hazards" (discrete time) or "cox"; times: to give figures at."""
    if method not in ("hazards", "cox"):
        raise unknown_name("method of survival", method, ("hazards", "cox"))
    if bins is not None and (not isinstance(bins, int) or not 1 <= bins <= 100):
        raise InputError(f"bins is {shown(bins)}, expected a whole number from 1 to 100")
    if any(not np.isfinite(t) or t <= 0 for t in times):
        raise InputError(f"times are {shown(list(times))}, expected numbers above 0 at which figures are given")
    at = tuple(sorted({float(t) for t in times}))
    return Task("survival", (TimeTarget(time, event, unit, method, BINS if bins is None else bins, at),))


def regression(target: str, *, loss: NumberLoss = "huber", unit: str = "") -> Task:
    """One number a bag; loss "huber" or "squared"."""
    if loss not in ("huber", "squared"):
        raise unknown_name("loss of regression", loss, ("huber", "squared"))
    return Task("regression", (NumberTarget(target, unit, loss),))


def ordinal(target: str, grades: Sequence[str]) -> Task:
    """One of several grades; grades: their names, the lowest first. A bag's value is the number of its grade."""
    found = GradeTarget(target, tuple(grades))
    if not found.valid:
        raise InputError(f"grades are {named(map(shown, grades))}, expected two or more different names in their order")
    return Task("ordinal", (found,))


def multilabel(targets: Sequence[Target]) -> Task:
    """Several targets at once, each with its own outputs and, where it is known, an equal share of the loss."""
    names = [target.name for target in targets]
    if len(set(names)) < len(names) or not names:
        raise InputError(f"targets are {', '.join(names) or 'none'}, expected one or more different columns")
    if not all(target.of_several for target in targets):
        raise InputError("times until an event are a task of their own (survival): leave them out of several targets")
    return Task("multilabel", tuple(targets))


def resolve_task(task: Task | str | None, bags: Sequence[Bag]) -> Task:
    """The task that was named, with targets as the first bag carries them.

    None: that of the bags, if they are a cohort that has one, else classification.
    """
    if task is None:
        return getattr(bags, "task", None) or classification()
    if isinstance(task, Task):
        return task
    if task not in task_kinds():
        raise unknown_name("task", task, task_kinds())
    if task == "classification":
        return classification()
    if task == "survival":
        return survival()
    known = list(bags[0].targets) if len(bags) else []
    if task == "regression":
        if len(known) != 1:
            raise InputError(
                f"the bags have {len(known)} targets ({', '.join(known) or 'none'}), and regression needs to know "
                "which: give task=dasmil.regression('name')"
            )
        return regression(known[0])
    if task != "multilabel":
        raise InputError(
            f"name the target of the task {task}, for example task=dasmil.ordinal('grade', ['1', '2', '3'])"
        )
    raise InputError(
        "name the targets: task=dasmil.multilabel([dasmil.ClassTarget('er'), dasmil.NumberTarget('ki67')])"
    )


def _check_follow_up(name: str, time: float, event: float) -> None:
    if time < 0:
        raise DataError(f"bag {name!r} has a time of {time:g}, expected 0 or more")
    if event not in (0, 1):
        raise DataError(f"bag {name!r} has an event of {event:g}, expected 1 (seen) or 0 (censored)")

"""What candidates predict, as a loss per bag: classes, hazards of censored times, a log-risk, numbers, several targets.

A candidate gives linear predictors [bags, m]; ``link`` spreads them over the outputs of a model [bags, outputs] (one
risk moves the hazards of all bins alike). Losses are proper and unweighted, so probabilities keep the prevalence of the
cohort.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, log_expit, log_softmax, softmax

from dasmil.errors import InputError
from dasmil.stats import FollowUp, auroc, harrell
from dasmil.tasks import ClassTarget, NumberTarget, Target, Task, TimeTarget

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
LARGEST_LOG_RISK = 10.0
"""Beyond this a log-risk counts as this: its exponential would say nothing."""


class Objective(ABC):
    """What some bags are asked, with the loss and its gradient; ``outputs`` numbers a bag."""

    link: Array
    """[linear predictors, outputs]."""
    curvature: float = 0.25
    """At most the second derivative of a bag's loss by a linear predictor."""
    strata: Rows
    """By which folds are balanced."""

    @property
    def outputs(self) -> int:
        return self.link.shape[1]

    @abstractmethod
    def part(self, rows: Rows) -> Self:
        """The same of some of the bags."""

    @abstractmethod
    def losses(self, outputs: Array) -> Array:
        """The loss of every bag [bags]; 0 where the value is missing."""

    @abstractmethod
    def gradient(self, outputs: Array) -> Array:
        """The derivative of the losses by the outputs [bags, outputs]."""

    @abstractmethod
    def score(self, outputs: Array) -> float:
        """How often the outputs order two bags rightly: AUROC (mean over classes), C-index; 0.5 is chance."""

    @abstractmethod
    def guess(self) -> Array:
        """A start for the constant outputs [outputs]."""

    @abstractmethod
    def targets(self) -> list[str]:
        """The value of every bag as text, by which bags of a patient are compared."""


class Classes(Objective):
    """One of several classes: one logit for two, a softmax for more."""

    def __init__(self, labels: Rows, classes: int) -> None:
        self.labels, self.classes = np.asarray(labels, dtype=np.int64), classes
        self.link = np.eye(1 if classes == 2 else classes)
        self.curvature = 0.25 if classes == 2 else 0.5
        self.strata = self.labels

    def part(self, rows: Rows) -> Classes:
        return Classes(self.labels[rows], self.classes)

    def losses(self, outputs: Array) -> Array:
        if self.classes == 2:
            return -log_expit(np.where(self.labels == 1, outputs[:, 0], -outputs[:, 0]))
        return -log_softmax(outputs, axis=1)[np.arange(len(outputs)), self.labels]

    def gradient(self, outputs: Array) -> Array:
        if self.classes == 2:
            return (expit(outputs[:, 0]) - (self.labels == 1))[:, None]
        return softmax(outputs, axis=1) - (self.labels[:, None] == np.arange(self.classes))

    def score(self, outputs: Array) -> float:
        if self.classes == 2:
            return float(auroc(outputs[:, 0], self.labels == 1)[0])
        each = [float(auroc(p, self.labels == k)[0]) for k, p in enumerate(softmax(outputs, axis=1).T)]
        return float(np.nanmean(each))

    def guess(self) -> Array:
        share = (np.bincount(self.labels, minlength=self.classes) + 0.5) / (len(self.labels) + 0.5 * self.classes)
        return np.array([np.log(share[1] / share[0])]) if self.classes == 2 else np.log(share)

    def targets(self) -> list[str]:
        return self.labels.astype(str).tolist()


class Hazards(Objective):
    """Likelihood of censored times in bins; lived, seen [bags, bins]: bins survived, and the bin of the event."""

    def __init__(self, target: TimeTarget, values: Array) -> None:
        self.target, self.values = target, values
        edges = np.array(target.edges)
        self.link = np.ones((1, len(edges)))
        starts = np.concatenate([[0.0], edges[:-1]])
        times, event = values[:, 0], values[:, 1] == 1
        bins = np.minimum(np.searchsorted(edges, times), len(edges) - 1)
        past_middle = times >= ((starts + edges) / 2)[bins]
        number = np.arange(len(edges))
        self.lived = (number < (bins + (~event & past_middle))[:, None]).astype(np.float64)
        self.seen = ((number == bins[:, None]) & event[:, None]).astype(np.float64)
        self.strata = event.astype(np.int64)

    def part(self, rows: Rows) -> Hazards:
        return Hazards(self.target, self.values[rows])

    def losses(self, outputs: Array) -> Array:
        return -(self.seen * log_expit(outputs) + self.lived * log_expit(-outputs)).sum(1)

    def gradient(self, outputs: Array) -> Array:
        return (self.lived + self.seen) * expit(outputs) - self.seen

    def score(self, outputs: Array) -> float:
        return self.target.concordance(self.values, outputs)

    def guess(self) -> Array:
        died, risk = self.seen.sum(0) + 0.5, (self.lived + self.seen).sum(0) + 1
        return np.log(died / np.maximum(risk - died, 0.5))

    def targets(self) -> list[str]:
        return [f"{time:g} {event:g}" for time, event in self.values]


class LogRisk(Objective):
    """A log-risk of proportional hazards: events are Poisson numbers, the Nelson-Aalen hazard up to a bag's time their
    expectation, so that every bag has a loss of its own.
    """

    def __init__(self, times: Array, events: NDArray[np.bool_], expected: Array | None = None) -> None:
        self.follow = FollowUp(times, events)
        self.expected = cumulative_hazard(self.follow) if expected is None else expected
        self.link = np.ones((1, 1))
        self.strata = self.follow.strata

    def part(self, rows: Rows) -> LogRisk:
        return LogRisk(self.follow.times[rows], self.follow.events[rows], self.expected[rows])

    def losses(self, outputs: Array) -> Array:
        risk = np.clip(outputs[:, 0], -LARGEST_LOG_RISK, LARGEST_LOG_RISK)
        return self.expected * np.exp(risk) - self.follow.events * risk

    def gradient(self, outputs: Array) -> Array:
        risk = np.clip(outputs[:, 0], -LARGEST_LOG_RISK, LARGEST_LOG_RISK)
        return (self.expected * np.exp(risk) - self.follow.events)[:, None]

    def score(self, outputs: Array) -> float:
        return float(harrell(self.follow, outputs[:, 0])[0])

    def guess(self) -> Array:
        return np.zeros(1)

    def targets(self) -> list[str]:
        return [f"{time:g} {event:g}" for time, event in zip(self.follow.times, self.follow.events, strict=True)]


class Number(Objective):
    """A number in standard deviations about the mean of the training bags."""

    curvature = 2.0

    def __init__(self, values: Array) -> None:
        self.values = values
        self.link = np.ones((1, 1))
        known = np.isfinite(values)
        self.strata = (known & (values > np.median(values[known]) if known.any() else known)).astype(np.int64)

    def part(self, rows: Rows) -> Number:
        return Number(self.values[rows])

    def losses(self, outputs: Array) -> Array:
        return np.nan_to_num(np.square(outputs[:, 0] - self.values)).astype(np.float64)

    def gradient(self, outputs: Array) -> Array:
        return np.nan_to_num(2 * (outputs[:, 0] - self.values))[:, None]

    def score(self, outputs: Array) -> float:
        known = np.isfinite(self.values)
        values = self.values[known]
        everyone = FollowUp(values.max() - values, np.ones(len(values), dtype=bool))
        return float(harrell(everyone, outputs[known, 0])[0])

    def guess(self) -> Array:
        return np.array([np.nanmean(self.values)], dtype=np.float64)

    def targets(self) -> list[str]:
        return [f"{value:g}" for value in self.values]


class OfTarget(Objective):
    """A target that says all of this itself: its loss for networks, and how one predictor moves its outputs."""

    def __init__(self, target: Target, values: Array) -> None:
        self.target, self.values, self.strata = target, values, target.strata(values)
        self.link, self.curvature = target.link, target.curvature
        self.loss = target.loss_of(values, balance=False)

    def part(self, rows: Rows) -> OfTarget:
        return OfTarget(self.target, self.values[rows])

    def losses(self, outputs: Array) -> Array:
        return self.loss.each(torch.from_numpy(outputs), torch.from_numpy(self.values)).numpy()

    def gradient(self, outputs: Array) -> Array:
        free = torch.tensor(outputs, requires_grad=True)
        with torch.enable_grad():
            self.loss.each(free, torch.from_numpy(self.values)).sum().backward()
        assert free.grad is not None
        return free.grad.numpy()

    def score(self, outputs: Array) -> float:
        return self.target.concordance(self.values, outputs)

    def guess(self) -> Array:
        return np.zeros(self.outputs) if self.loss.start is None else self.loss.start.double().numpy()

    def targets(self) -> list[str]:
        return [" ".join(f"{value:g}" for value in row) for row in self.values]


class Several(Objective):
    """Several targets, each where it is known: the sum of their losses."""

    def __init__(self, parts: Sequence[Objective], known: Sequence[NDArray[np.bool_]]) -> None:
        self.parts, self.known = list(parts), list(known)
        ends = np.cumsum([part.outputs for part in self.parts])
        self.places = [slice(end - part.outputs, end) for part, end in zip(self.parts, ends, strict=True)]
        self.link = np.zeros((sum(len(part.link) for part in self.parts), int(ends[-1])))
        row = 0
        for part, place in zip(self.parts, self.places, strict=True):
            self.link[row : row + len(part.link), place] = part.link
            row += len(part.link)
        self.curvature = max(part.curvature for part in self.parts)
        self.strata = self.parts[0].strata

    def part(self, rows: Rows) -> Several:
        return Several([part.part(rows) for part in self.parts], [known[rows] for known in self.known])

    def losses(self, outputs: Array) -> Array:
        each = zip(self.parts, self.places, self.known, strict=True)
        return np.sum([np.where(known, part.losses(outputs[:, place]), 0) for part, place, known in each], axis=0)

    def gradient(self, outputs: Array) -> Array:
        each = zip(self.parts, self.places, self.known, strict=True)
        return np.concatenate(
            [np.where(known[:, None], part.gradient(outputs[:, place]), 0) for part, place, known in each], axis=1
        )

    def score(self, outputs: Array) -> float:
        each = zip(self.parts, self.places, self.known, strict=True)
        return float(
            np.mean([part.part(np.flatnonzero(k)).score(outputs[k][:, place]) for part, place, k in each if k.any()])
        )

    def guess(self) -> Array:
        each = zip(self.parts, self.known, strict=True)
        return np.concatenate([part.part(np.flatnonzero(known)).guess() for part, known in each])

    def targets(self) -> list[str]:
        return [" ".join(values) for values in zip(*(part.targets() for part in self.parts), strict=True)]


def objective_of(task: Task, values: Array) -> Objective:
    """What bags with these values [bags, columns] of a fitted task are asked."""
    parts: list[Objective] = []
    known: list[NDArray[np.bool_]] = []
    for target, own, _ in task.parts():
        columns = values[:, own]
        there: NDArray[np.bool_] = np.asarray(np.isfinite(columns).all(1), dtype=np.bool_)
        known.append(there)
        parts.append(_of_target(target, np.where(there[:, None], columns, 0.0), there))
    return parts[0] if len(parts) == 1 and known[0].all() else Several(parts, known)


def _of_target(target: Target, values: Array, known: NDArray[np.bool_]) -> Objective:
    if isinstance(target, ClassTarget):
        return Classes(values[:, 0].astype(np.int64), len(target.classes))
    if isinstance(target, NumberTarget):
        return Number(np.where(known, target.standardised(values[:, 0]), np.nan))
    if not isinstance(target, TimeTarget):
        return OfTarget(target, values)
    if target.method == "cox":
        return LogRisk(values[:, 0], values[:, 1] == 1)
    if not target.edges:
        raise InputError("the task has no bins of time yet: fit it to the training bags first")
    return Hazards(target, values)


def cumulative_hazard(follow: FollowUp) -> Array:
    """The estimate of Nelson and Aalen [bags] at the time of every bag; it sums to the number of events."""
    at_risk = (follow.times[:, None] <= follow.times).sum(1)
    steps = follow.events / at_risk
    return np.asarray((follow.times[:, None] >= follow.times) @ steps, dtype=np.float64)

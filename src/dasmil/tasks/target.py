"""The interface of a target: which values it has, what outputs of a model mean, its loss, its metrics, its words.

A new target is a file with one subclass of ``Target`` and a line in ``registry.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor

from dasmil.stats.concordance import harrell
from dasmil.stats.follow_up import FollowUp
from dasmil.vocabulary import Meaning

Array = NDArray[np.float64]
Said = dict[str, Array]
"""What a target's outputs mean, by name: arrays with a value per bag."""
SHUFFLES = 200
"""Random predictions from which the spread of a concordance without signal is known."""


class TargetLoss(ABC):
    """The loss of one target, with what it takes from the values of the training bags."""

    guess: float
    """The loss of the best prediction that ignores the bag."""
    start: Tensor | None = None
    """Outputs [outputs] of that prediction, where they are not zero."""

    @abstractmethod
    def each(self, outputs: Tensor, values: Tensor) -> Tensor:
        """Losses [*batch] of outputs [*batch, outputs] and values [*batch, columns], none of them missing."""

    def of_epoch(self, values: Tensor, outputs: Callable[[], Tensor]) -> EpochLoss:
        """The loss in an epoch over bags with these values; outputs: those of all bags before the first step."""
        return EpochLoss(self, values)

    def mean(self, outputs: Tensor, values: Tensor) -> float:
        """The mean over a set of bags, outputs [n, outputs] and values [n, columns]; NaN where all are missing."""
        known = torch.isfinite(values).all(-1)
        each = self.each(outputs[known], values[known])
        return float(each.mean()) if len(each) else float("nan")


class EpochLoss:
    """The loss of one target in an epoch; 0 where a value is missing."""

    def __init__(self, loss: TargetLoss, values: Tensor) -> None:
        self.loss, self.values = loss, values
        self.known = torch.isfinite(values).all(-1)
        self.complete = bool(self.known.all())
        self.filled = torch.where(torch.isfinite(values), values, torch.zeros_like(values))

    def __call__(self, outputs: Tensor, bags: Tensor, run: int | None) -> Tensor:
        """Losses [*batch] of outputs [*batch, outputs] for the bags of these numbers [*batch]; run: None for all."""
        each = self.loss.each(outputs, self.filled[bags])
        return each if self.complete else torch.where(self.known[bags], each, torch.zeros_like(each))

    def note(self, outputs: Tensor, bags: Tensor, run: int | None) -> None:
        """Hear the outputs after a step; for losses that compare a bag with others."""


class Target(ABC):
    """One thing that is predicted of a bag. Subclasses are frozen dataclasses; ``outputs`` numbers of a model are its.

    Values are arrays [n, columns] with NaN where one is missing, outputs arrays [n, outputs].
    """

    kind: ClassVar[str]
    """Its name in records."""
    task: ClassVar[str]
    """What a task with this target alone is called: ``--task``."""
    main: ClassVar[str]
    """The metric by which settings and models are compared."""
    metrics: ClassVar[tuple[str, ...]]
    """What is noted of validation bags after every epoch, where it is the only target; the main metric first."""
    headlines: ClassVar[tuple[str, ...]]
    """Metrics in large figures on the report."""
    trained: ClassVar[str] = "concordance"
    """What is noted of training bags after every epoch."""
    rank: ClassVar[str] = "concordance"
    """What held-out bags say of a candidate: 0.5 is chance."""
    exact: ClassVar[bool] = False
    """Whether a good model has a loss near 0. A time until an event keeps most of its loss whatever is known."""

    name: str
    unit: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the values that a bag carries in ``Bag.targets``."""
        return (self.name,)

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many numbers a model gives for it."""

    @property
    @abstractmethod
    def text(self) -> str:
        """What is predicted, within a sentence."""

    @abstractmethod
    def fitted(self, values: Array) -> Self:
        """The target with what the training bags say: bins of time, mean and spread of numbers."""

    def decided(self, values: Array, said: Said) -> Self:
        """The target with the threshold that validation bags choose, where it has one."""
        return self

    @abstractmethod
    def loss_of(self, values: Array, *, balance: bool) -> TargetLoss:
        """The loss, from the values of the training bags; balance: weigh classes by their inverse frequency."""

    @abstractmethod
    def strata(self, values: Array) -> NDArray[np.int64]:
        """A number for every bag by which splits are balanced."""

    @abstractmethod
    def said(self, outputs: Array) -> Said:
        """What outputs [..., outputs] mean, by name and in the unit of the target; the first is its main answer."""

    def mean_of(self, said: Said) -> Said:
        """What several runs predict together, from the means of what each predicts."""
        return said

    def shared(self, said: Said) -> Said:
        """As ``said``, in the terms that all folds of a cross-validation share."""
        return said

    def answer(self, outputs: Array) -> Array:
        """The main answer [n]: a risk, a probability, a number."""
        return next(iter(self.said(outputs).values()))

    @abstractmethod
    def order(self, outputs: Array) -> Array:
        """One number a bag [n] that is larger for larger values."""

    def concordance(self, values: Array, outputs: Array) -> float:
        """How often of two bags with different values the larger one has the larger output; 0.5 is chance."""
        known = np.isfinite(values[:, 0])
        return concordance(values[known, 0], self.order(outputs[known]))

    @abstractmethod
    def figures(self, values: Array, said: Said, weights: Array, reference: Array | None = None) -> dict[str, Array]:
        """Every metric under each row of the weights [draws, n], from what ``said`` gave: arrays [draws]."""

    def figures_of_several(self, values: Array, said: Said, weights: Array) -> dict[str, Array]:
        """The metrics that are given of it where it is one target of several."""
        return self.figures(values, said, weights)

    def quick(self, values: Array, outputs: Array, name: str) -> float:
        """One metric of a set, as cheaply as it goes."""
        return float(self.figures(values, self.said(outputs), np.ones((1, len(values))))[name][0])

    def chance(self, values: Array, value: float, tried: int) -> float:
        """How often the best of so many random predictions would have this ``rank`` or more, at most."""
        return chance_of(lambda outputs: self.concordance(values, outputs), (len(values), self.outputs), value, tried)

    def patients(self, values: Array, owners: Sequence[str]) -> tuple[int, NDArray[np.int64] | None]:
        """Patients of the kind that limits what can be said, and of classes those of each; owners: of every bag."""
        known = np.isfinite(values).all(1)
        return len(set(np.array(owners)[known])), None

    def describe(self, values: Array) -> dict[str, Any]:
        """What data.json notes about the values of a set, where it is the only target."""
        return {"known": {name: int(np.isfinite(values[:, k]).sum()) for k, name in enumerate(self.columns)}}

    def curves(self, values: Array, said: Said, patients: Sequence[str]) -> dict[str, Any]:
        """What a summary has besides metrics, where it is the only target: of classes a calibration curve."""
        return {}

    @abstractmethod
    def known_text(self, values: Array) -> str:
        """What is known of one bag in a few words, from its values [columns]; empty where nothing is."""

    @abstractmethod
    def meaning(self, output: int) -> Meaning:
        """What one output says, for explanations of it."""

    @abstractmethod
    def output_names(self) -> list[str]:
        """What each output is called in an explanation; a single one has two names, its negative's first."""

    def record(self) -> dict[str, Any]:
        """Plain values, from which ``task_from`` makes it again."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}  # pyright: ignore[reportArgumentType]
        return {"kind": self.kind, **values}


def concordance(values: Array, order: Array) -> float:
    """Of all pairs with different values, the share in which the larger has the larger output; NaN without pairs."""
    if not len(values):
        return float("nan")
    return float(harrell(FollowUp(values.max() - values, np.ones(len(values), dtype=bool)), order)[0])


def chance_of(score: Callable[[Array], float], shape: tuple[int, int], value: float, tried: int) -> float:
    """The chance of a concordance: that of random outputs of this shape is taken as normal about 0.5."""
    rng = np.random.default_rng(0)
    spread = np.nanstd([score(rng.standard_normal(shape)) for _ in range(SHUFFLES)])
    if not np.isfinite(value) or not spread > 0:
        return 1.0
    return float(min(1.0, tried * norm.sf((value - 0.5) / spread)))

"""The interface of a target: which values it has, what outputs of a model mean, its loss, its metrics, its words.

A new target is a file with one subclass of ``Target`` and a line in ``registry.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor

from dasmil.errors import InputError
from dasmil.stats.chance import correlation_to_tell
from dasmil.stats.concordance import harrell
from dasmil.stats.follow_up import FollowUp
from dasmil.vocabulary import Meaning

Array = NDArray[np.float64]
Said = dict[str, Array]
"""What a target's outputs mean, by name: arrays with a value per bag."""
SHUFFLES = 200
"""Random predictions from which the spread of a concordance without signal is known."""
FAR = 10.0
"""A number so many times the spread of the middle half away from the median has most likely another unit."""


@dataclass(frozen=True)
class LabelColumn:
    """A column of a label table; names: its different cells in their order; unit, loss: what was given for numbers."""

    name: str
    names: Callable[[], tuple[str, ...]]
    unit: str = ""
    loss: str = "huber"


class Detectable(NamedTuple):
    """What patients that were not trained on can show: of which figure, how many are rarest (None: all count alike),
    the smallest value that is better than chance (None: none is), and the true one that is likely to be found.
    """

    figure: str
    rarest: int | None
    smallest: float | None
    to_find: float | None


class Oddity(NamedTuple):
    """Values that are most likely wrong, for the doctor: the name of the check, what was found, and the slides."""

    check: str
    message: str
    slides: tuple[str, ...] = ()


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
    of_several: ClassVar[bool] = True
    """Whether it is read from one column, and may be one target of several."""
    curvature: ClassVar[float] = 1.0
    """At most the second derivative of a bag's loss by a linear predictor (``link``)."""

    name: str
    unit: str = ""
    classes: tuple[str, ...] = ()
    """What values 0, 1, ... are called, where they are classes or grades."""

    @classmethod
    def of_column(cls, column: LabelColumn) -> Self:
        """The target that a column of a label table holds."""
        raise InputError(f"a target of the kind {cls.kind} is not read from one column ({column.name!r})")

    def value_of(self, cell: str, number: float | None) -> float | None:
        """The value that a cell means, which is this number where it is one; None: it has no meaning here."""
        if self.classes:
            return float(self.classes.index(cell)) if cell in self.classes else None
        return number if number is not None and np.isfinite(number) else None

    @property
    def valid(self) -> bool:
        """Whether its numbers or classes can come from training; what a damaged record says may not."""
        return True

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

    def strata(self, values: Array) -> NDArray[np.int64]:
        """A number for every bag by which splits are balanced: the class, or whether a number is above the median.

        Bags without a class go with the commonest, so that splits need not share out a few of them.
        """
        known = np.isfinite(values[:, 0])
        if self.classes:
            common = int(np.bincount(values[known, 0].astype(np.int64)).argmax()) if known.any() else 0
            return np.where(known, np.nan_to_num(values[:, 0]), common).astype(np.int64)
        middle = np.median(values[known, 0]) if known.any() else 0.0
        return (known & (values[:, 0] > middle)).astype(np.int64)

    @property
    def strata_names(self) -> tuple[str, ...]:
        """What the strata are called."""
        return self.classes or ("lower half", "upper half")

    @property
    def strata_title(self) -> str:
        """What tells the strata apart, as a heading."""
        return self.name if self.classes else "Upper half"

    @property
    def link(self) -> Array:
        """How linear predictors move the outputs [predictors, outputs]."""
        return np.eye(self.outputs)

    def example(self, number: int) -> dict[str, float | None]:
        """Values that a bag may have, others for other numbers."""
        return {self.name: float(number % len(self.classes) if self.classes else number)}

    def description(self, values: Array) -> str:
        """What is known of it in a cohort, in a line; values: one row a patient."""
        known = values[np.isfinite(values).all(1)]
        if not len(known):
            return f"{self.name}: missing of all {len(values)}"
        missing = f", missing of {len(values) - len(known)}" if len(known) < len(values) else ""
        return f"{self._describe_known(known)}{missing}"

    def _describe_known(self, known: Array) -> str:
        y = known[:, 0]
        if self.classes:
            return f"{self.name}: " + ", ".join(f"{int((y == c).sum())} {name}" for c, name in enumerate(self.classes))
        unit = f" {self.unit}" if self.unit else ""
        return (
            f"{self.name}: {y.min():g} to {y.max():g}{unit}, mean {y.mean():.4g}, standard deviation {y.std():.3g}, "
            f"{len(np.unique(y))} different values"
        )

    def detectable(self, sets: Sequence[Array]) -> Detectable:
        """What sets of patients with these values (the folds of a cross-validation, or one set) can show."""
        return Detectable("correlation", None, *correlation_to_tell([len(rows) for rows in sets]))

    def oddities(self, values: Array, slides: Sequence[str]) -> Iterator[Oddity]:
        """Values of slides that are most likely wrong."""
        if self.classes:
            return
        y = values[:, 0]
        low, middle, high = np.quantile(y[np.isfinite(y)], [0.25, 0.5, 0.75])
        far = [i for i, v in enumerate(y) if high > low and abs(v - middle) > FAR * (high - low)]
        if far:
            listed = ", ".join(f"{slides[i]} ({y[i]:g})" for i in far[:3])
            message = (
                f"{len(far)} slides have a {self.name} far from the others', {low:g} to {high:g} in the middle half: "
                f"{listed}; is the unit the same?"
            )
            yield Oddity("far off", message, tuple(slides[i] for i in far))

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
        return float(concordance(values[known, 0], self.order(outputs[known]))[0])

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

    def patients_of_metrics(self, values: Array, owners: Sequence[str]) -> Mapping[str, int]:
        """The same of metrics that other patients limit, by their names."""
        return {}

    def describe(self, values: Array) -> dict[str, Any]:
        """What data.json notes about the values of a set, where it is the only target."""
        return {"known": {name: int(np.isfinite(values[:, k]).sum()) for k, name in enumerate(self.columns)}}

    def curves(self, values: Array, said: Said, patients: Sequence[str]) -> dict[str, Any]:
        """What a summary has besides metrics, where it is the only target: of classes a calibration curve."""
        return {}

    @abstractmethod
    def known_text(self, values: Array) -> str:
        """What is known of one bag in a few words, from its values [columns]; empty where nothing is."""

    def value_texts(self, values: Array) -> list[str]:
        """Each value of one bag [columns] for a table."""
        return ["–" if np.isnan(v) else self.classes[int(v)] if self.classes else f"{v:g}" for v in values]

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


def concordance(values: Array, order: Array, weights: Array | None = None) -> Array:
    """Of all pairs with different values, the share [draws] in which the larger has the larger output; NaN without."""
    if not len(values):
        return np.full(1 if weights is None else len(weights), np.nan)
    return harrell(FollowUp(values.max() - values, np.ones(len(values), dtype=bool)), order, weights)


def chance_of(score: Callable[[Array], float], shape: tuple[int, int], value: float, tried: int) -> float:
    """The chance of a concordance: that of random outputs of this shape is taken as normal about 0.5."""
    rng = np.random.default_rng(0)
    spread = np.nanstd([score(rng.standard_normal(shape)) for _ in range(SHUFFLES)])
    if not np.isfinite(value) or not spread > 0:
        return 1.0
    return float(min(1.0, tried * norm.sf((value - 0.5) / spread)))

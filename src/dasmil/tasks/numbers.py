"""A number, predicted in standard deviations about the mean of the training bags."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import ClassVar, Literal

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional as F

from dasmil.errors import DataError
from dasmil.stats.numeric import NUMERIC_METRICS, numeric_scores
from dasmil.tasks.target import Array, LabelColumn, Said, Target, TargetLoss
from dasmil.vocabulary import Meaning

NumberLoss = Literal["huber", "squared"]


@dataclass(frozen=True)
class NumberTarget(Target):
    """A number; the model says it in standard deviations about the mean of the training bags.

    mean, sd: of the training bags (None before they are known); loss: "huber" (errors beyond one standard deviation
    count linearly) or "squared"; unit: as the user calls it.
    """

    name: str
    unit: str = ""
    loss: NumberLoss = "huber"
    mean: float | None = None
    sd: float | None = None
    kind: ClassVar[str] = "number"
    task: ClassVar[str] = "regression"
    main: ClassVar[str] = "r2"
    metrics: ClassVar[tuple[str, ...]] = ("r2", "mae", "spearman")
    headlines: ClassVar[tuple[str, ...]] = ("r2", "mae")

    @property
    def outputs(self) -> int:
        return 1

    @property
    def text(self) -> str:
        return f"{self.name!r} ({self.unit or 'a number'})"

    def fitted(self, values: Array) -> NumberTarget:
        known = values[np.isfinite(values[:, 0]), 0]
        if not len(known):
            raise DataError(f"no training bag has a value of the target {self.name!r}: fill in the column")
        if known.std() == 0:
            raise DataError(
                f"the target {self.name!r} is {known[0]:g} in all {len(known)} training bags: a constant cannot be "
                "learned; give another column"
            )
        return replace(self, mean=float(known.mean()), sd=float(known.std()))

    def loss_of(self, values: Array, *, balance: bool) -> NumberError:
        return NumberError(self, values)

    @property
    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of the training bags."""
        assert self.mean is not None
        assert self.sd is not None
        return self.mean, self.sd

    def standardised(self, values: Array) -> Array:
        mean, sd = self.moments
        return (values - mean) / sd

    @classmethod
    def of_column(cls, column: LabelColumn) -> NumberTarget:
        return cls(column.name, column.unit, column.loss)  # pyright: ignore[reportArgumentType]

    @property
    def valid(self) -> bool:
        return (self.mean is None or isfinite(self.mean)) and (self.sd is None or 0 < self.sd < float("inf"))

    def said(self, outputs: Array) -> Said:
        """The number in its own unit."""
        mean, sd = self.moments
        return {self.name: mean + sd * outputs[..., 0]}

    def order(self, outputs: Array) -> Array:
        return outputs[..., 0]

    def figures(self, values: Array, said: Said, weights: Array, reference: Array | None = None) -> dict[str, Array]:
        known = np.isfinite(values[:, 0])
        if not known.any():
            return dict.fromkeys(NUMERIC_METRICS, np.full(len(weights), np.nan))
        return numeric_scores(values[known, 0], said[self.name][known], weights[:, known])

    def known_text(self, values: Array) -> str:
        return f"{self.name} {values[0]:g} {self.unit}".strip() if np.isfinite(values[0]) else ""

    def meaning(self, output: int) -> Meaning:
        """The number in its own unit."""
        mean, sd = self.moments
        return Meaning(self.name, f"raises {self.name}", f"lowers {self.name}", self.unit, scale=sd, shift=mean)

    def output_names(self) -> list[str]:
        return [f"less {self.name}", f"more {self.name}"]


class NumberError(TargetLoss):
    """Huber's loss or the squared error of a number in standard deviations of the training bags."""

    def __init__(self, target: NumberTarget, values: Array) -> None:
        self.target = target
        known = values[np.isfinite(values[:, 0]), :1]
        best = minimize_scalar(
            lambda c: float(self.each(torch.full((len(known), 1), c), torch.from_numpy(known)).mean())
        )
        self.guess = float(best.fun)  # pyright: ignore[reportAttributeAccessIssue]

    def each(self, outputs: Tensor, values: Tensor) -> Tensor:
        mean, sd = self.target.moments
        said = outputs[..., 0] if outputs.dtype == torch.float64 else outputs[..., 0].float()
        truth = ((values[..., 0] - mean) / sd).to(said)
        if self.target.loss == "squared":
            return (said - truth).square()
        return 2 * F.huber_loss(said, truth, reduction="none")  # twice: the square of small errors

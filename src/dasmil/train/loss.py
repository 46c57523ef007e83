"""The bag loss: cross entropy with classes weighed by their inverse frequency in the training bags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from dasmil.errors import DataError
from dasmil.stats import probabilities, score
from dasmil.types import Output

if TYPE_CHECKING:
    from dasmil.train.feed import Facts

Array = NDArray[np.float64]
Lesson = Callable[[Output, Tensor, int | None], Tensor]
"""Losses of an output, for the bags of these numbers [*batch]; which run it is of, None: all at once."""


class Loss(Protocol):
    """What training asks of a loss, whatever the task is."""

    @property
    def constant_guess(self) -> float:
        """The loss of the best guess that ignores the bag; a run that learned nothing ends there."""
        ...

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is told of validation bags after every epoch."""
        ...

    @property
    def trained(self) -> str:
        """What is told of training bags, as they were seen in an epoch."""
        ...

    @property
    def rank(self) -> str:
        """What held-out bags tell of a start: 0.5 is chance."""
        ...

    @property
    def exact(self) -> bool:
        """Whether a good model has a loss near 0. A time until an event keeps most of its loss whatever is known."""
        ...

    def lesson(self, facts: Facts, outputs: Callable[[], Array], device: torch.device) -> Lesson:
        """How steps of an epoch over these bags are judged; outputs: what runs say of them before the first step."""
        ...

    def of_set(self, logits: Array, facts: Facts) -> list[float]:
        """Mean loss of each run on a set, from logits [runs, bags, ...]; without auxiliary losses."""
        ...

    def metric(self, facts: Facts, logits: Array, name: str, bags: NDArray[np.int64] | None = None) -> float:
        """A metric of logits [bags, ...] of a set, or of these bags of it."""
        ...

    def fitted_below(self, share: float) -> float:
        """The training loss from which on a run counts as one that did not fit; share: of a constant guess."""
        ...

    def chance(self, facts: Facts, value: float, tried: int) -> float:
        """How often the best of so many blind guesses would have this rank or more on a set, at most."""
        ...


@dataclass(frozen=True)
class BagLoss:
    """Loss per run; class_weights are relative to class 0 for two classes (the paper's positive weight)."""

    class_weights: Tensor
    constant_guess: float
    """The loss of the best guess that ignores the bag; a run that learned nothing ends there."""

    metrics = ("auroc", "balanced_accuracy")
    trained = "balanced_accuracy"
    rank = "auroc"
    exact = True

    @staticmethod
    def of(labels: NDArray[np.int64], classes: int, balance: bool, device: torch.device) -> BagLoss:
        """From the training labels. Two classes: positive weight = negatives / positives, as in the paper."""
        counts = np.bincount(labels, minlength=classes).astype(np.float64)
        if (counts == 0).any() or classes < 2:
            found = ", ".join(f"{int(n)} of class {c}" for c, n in enumerate(counts))
            if classes <= 2:
                missing = "positive" if len(counts) < 2 or counts[1] == 0 else "negative"
                raise DataError(f"the training bags hold no {missing} bag ({found}): training needs both classes")
            raise DataError(f"a class has no training bag ({found}): every class 0 ... {classes - 1} needs some")
        weights = class_weights(counts) if balance else np.ones(classes)
        mass = weights * counts
        guess = float(-(mass * np.log(mass / mass.sum())).sum() / counts.sum())
        return BagLoss(torch.tensor(weights, dtype=torch.float32, device=device), guess)

    def __call__(self, output: Output, labels: Tensor) -> Tensor:
        """Losses [*batch] of logits [*batch] (or [*batch, classes]) and labels [*batch].

        Auxiliary losses, the losses of side logits (deep supervision) and the one that belongs to the label are added.
        """
        loss = output.bag_weight * self._entropy(output.logit, labels)
        if output.side_logits is not None:
            sides = output.side_logits.shape[labels.ndim]
            each = self._entropy(output.side_logits, labels.unsqueeze(-1).expand(*labels.shape, sides))
            loss = loss + output.side_weight * each.sum(-1)
        if output.label_losses is not None:
            loss = loss + output.label_losses.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
        return loss if output.aux_loss is None else loss + output.aux_loss

    def lesson(self, facts: Facts, outputs: Callable[[], Array], device: torch.device) -> Lesson:
        labels = torch.from_numpy(facts.labels).to(device)
        return lambda output, bags, run: self(output, labels[bags])

    def of_set(self, logits: Array, facts: Facts) -> list[float]:
        on_cpu = BagLoss(self.class_weights.cpu(), self.constant_guess)
        target = torch.from_numpy(facts.labels)
        return [float(on_cpu(Output(torch.from_numpy(row)), target).mean()) for row in logits]

    def metric(self, facts: Facts, logits: Array, name: str, bags: NDArray[np.int64] | None = None) -> float:
        labels = facts.labels if bags is None else facts.labels[bags]
        return score(labels, probabilities(logits, len(self.class_weights)))[name]

    def fitted_below(self, share: float) -> float:
        return share * self.constant_guess

    def chance(self, facts: Facts, value: float, tried: int) -> float:
        from dasmil.train.held_out import chance_of

        return chance_of(facts.labels, value, tried) if len(self.class_weights) == 2 else 1.0

    def _entropy(self, logit: Tensor, labels: Tensor) -> Tensor:
        return entropy(logit, labels, self.class_weights)


def class_weights(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of classes by their inverse frequency; of two, that of class 1 relative to class 0."""
    if len(counts) == 2:
        return np.array([1.0, counts[0] / counts[1]])
    return counts.sum() / (len(counts) * counts)


def entropy(logit: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Cross entropy [*batch] of logits [*batch] (two classes) or [*batch, classes], classes weighed."""
    logit = logit.float()
    if len(weights) == 2:
        target = labels.to(logit.dtype)
        return F.binary_cross_entropy_with_logits(logit, target, pos_weight=weights[1], reduction="none")
    rows, flat = logit.reshape(-1, logit.shape[-1]), labels.reshape(-1)
    return F.cross_entropy(rows, flat, weight=weights, reduction="none").view(labels.shape)

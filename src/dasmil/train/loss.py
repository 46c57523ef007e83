"""The loss of a task: the mean over its targets, each in the bags that have it, and what a model adds to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dasmil.tasks import EpochLoss, Task
from dasmil.types import Output

if TYPE_CHECKING:
    from dasmil.train.feed import Facts

Array = NDArray[np.float64]
Lesson = Callable[[Output, Tensor, int | None], Tensor]
"""Losses of an output, for the bags of these numbers [*batch]; which run it is of, None: all at once."""
LEARNED = 0.98
"""A training loss below this share of a constant guess counts as fitted, where a good model's is not near 0."""


class Loss:
    """What training asks of a loss, whatever the task is.

    constant_guess: the loss of the best guess that ignores the bag; a run that learned nothing ends there. metrics:
    what is told of validation bags after every epoch; trained: of training bags; rank: what held-out bags tell of a
    start, 0.5 is chance; exact: whether a good model has a loss near 0.
    """

    def __init__(self, task: Task, values: Array, *, balance: bool) -> None:
        """task, values [n, columns]: of the training bags; balance: weigh classes by their inverse frequency there."""
        self.task = task
        self.parts = [target.loss_of(values[:, own], balance=balance) for target, own, _ in task.parts()]
        self.constant_guess = float(np.mean([part.guess for part in self.parts]))
        self.metrics, self.trained, self.rank, self.exact = task.metrics, task.trained, task.rank, task.exact

    @property
    def constant(self) -> Tensor | None:
        """Outputs of a constant guess, where zero is far from one: the hazards of all training bags."""
        return self.parts[0].start if len(self.parts) == 1 else None

    def lesson(self, facts: Facts, outputs: Callable[[], Array], device: torch.device) -> Lesson:
        """How steps of an epoch over these bags are judged; outputs: what runs say of them before the first step."""

        def before() -> Tensor:
            found = torch.from_numpy(outputs()).float().to(device)
            return found.reshape(*found.shape[:2], -1)

        values = torch.from_numpy(facts.targets).to(device)
        parts = [
            (part.of_epoch(values[:, own], before), out)
            for part, (_, own, out) in zip(self.parts, self.task.parts(), strict=True)
        ]
        labels = torch.from_numpy(facts.labels).to(device) if self.task.labels is not None else None

        def losses(output: Output, bags: Tensor, run: int | None) -> Tensor:
            said = _wide(output.logit, bags.ndim)
            loss = output.bag_weight * _mean(parts, said, bags, run)
            if output.side_logits is not None:
                sides = _wide(output.side_logits, bags.ndim + 1).unbind(bags.ndim)
                loss = loss + output.side_weight * torch.stack([_mean(parts, s, bags, run) for s in sides], -1).sum(-1)
            if output.label_losses is not None and labels is not None:
                loss = loss + output.label_losses.gather(-1, labels[bags].unsqueeze(-1)).squeeze(-1)
            for part, out in parts:
                part.note(said[..., out], bags, run)
            return loss if output.aux_loss is None else loss + output.aux_loss

        return losses

    def of_set(self, logits: Array, facts: Facts) -> list[float]:
        """Mean loss of each run on a set, from logits [runs, bags, ...]; without auxiliary losses."""
        values = torch.from_numpy(facts.targets)
        return [self._of_set(torch.from_numpy(row).reshape(len(values), -1), values) for row in logits]

    def _of_set(self, said: Tensor, values: Tensor) -> float:
        parts = zip(self.parts, self.task.parts(), strict=True)
        found = [part.mean(said[:, out], values[:, own]) for part, (_, own, out) in parts]
        known = [value for value in found if not np.isnan(value)]
        return float(np.mean(known)) if known else float("nan")

    def metric(self, facts: Facts, logits: Array, name: str, bags: NDArray[np.int64] | None = None) -> float:
        """A metric of logits [bags, ...] of a set, or of these bags of it."""
        values = facts.targets if bags is None else facts.targets[bags]
        return self.task.quick(values, logits.reshape(len(values), -1), name)

    def fitted_below(self, share: float) -> float:
        """The training loss from which on a run counts as one that did not fit; share: of a constant guess."""
        return (share if self.exact else LEARNED) * self.constant_guess

    def chance(self, facts: Facts, value: float, tried: int) -> float:
        """How often the best of so many blind guesses would have this rank or more on a set, at most."""
        return self.task.chance(facts.targets, value, tried)


def _wide(logit: Tensor, dims: int) -> Tensor:
    """Outputs [*batch, outputs] of logits [*batch] or [*batch, outputs]; dims: of the batch."""
    return logit.unsqueeze(-1) if logit.ndim == dims else logit


def _mean(parts: list[tuple[EpochLoss, slice]], said: Tensor, bags: Tensor, run: int | None) -> Tensor:
    found = [part(said[..., out], bags, run) for part, out in parts]
    return torch.stack(found).mean(0) if len(found) > 1 else found[0]

"""What training gives back to a Python user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dasmil.models.base import MILModel
from dasmil.tasks import Task, classification
from dasmil.train.evaluate import model_logits
from dasmil.train.feed import Feed
from dasmil.train.state import FinishedAttempt
from dasmil.types import Bag


@dataclass(frozen=True, eq=False, repr=False)
class TrainedRun:
    """One trained run: its model (evaluation mode), its curve, and whether it fitted the training bags."""

    seed: int
    lr: float
    weight_decay: float
    model: MILModel
    history: list[dict[str, float]]
    """One row an epoch, as in metrics.csv."""
    fitted: bool
    reason: str
    """Why it counts as stuck; empty when it fitted."""
    train_loss: float
    epoch: int
    """The epoch of the weights."""
    attempts: list[FinishedAttempt]
    """The chosen attempt first."""
    task: Task = field(default_factory=classification)
    """What was asked."""
    library: dict[str, object] | None = None
    """Of default training: every candidate with its out-of-fold loss, and the one that was kept."""

    @property
    def proven(self) -> bool:
        """Whether held-out training bags say that it found something; a low training loss alone says little."""
        return self.attempts[0].proven

    def __repr__(self) -> str:
        state = "fitted" if self.fitted else "not fitted"
        return (
            f"TrainedRun({self.model.name}, seed {self.seed}, epoch {self.epoch}, "
            f"training loss {self.train_loss:.3f}, {state})"
        )

    def predict(self, bags: Sequence[Bag]) -> NDArray[np.float64]:
        """Probability of class 1 per bag [n], or of every class [n, classes]; with a task, what it asks for: the risk,
        the number in its unit, or of several targets one column each.
        """
        device = next(self.model.parameters()).device
        feed = Feed(bags, device, memory_gb=1.0, name="given", labelled=False)
        logits = model_logits([self.model], feed)
        return self.task.answers(logits[0].reshape(len(bags), -1))

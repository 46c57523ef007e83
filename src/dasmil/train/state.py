"""What training knows about its runs: who they are, how far they are, how they ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Row = dict[str, float]
CHANCE = 0.05
"""How rarely blind guesses may do as well on held-out bags as what counts as found."""


@dataclass(frozen=True)
class RunSpec:
    """What tells one run from the others that train with it."""

    seed: int
    lr: float
    weight_decay: float


@dataclass
class RunState:
    """What is known about one run so far; JSON-able but for the weights, which live in ``Training``."""

    history: list[Row] = field(default_factory=list)
    best_score: float | None = None
    best_epoch: int | None = None
    stopped_epoch: int | None = None
    judged: dict[str, float] = field(default_factory=dict)
    """The epoch with the lowest loss on held-out bags while starts compete: epoch, loss, auroc, train_loss."""
    untrained: dict[str, float] = field(default_factory=dict)
    """The same before the first step."""
    stop_below: float | None = None
    """Training ends at this training loss: held-out bags said that more is learning by heart."""
    stop_at: int | None = None
    """Or after this epoch, whatever its training loss."""
    rivals: list[dict[str, Any]] = field(default_factory=list)
    """The starts that this one was preferred to: number, epoch, training loss, theta_init and learning rate."""


@dataclass
class FinishedAttempt:
    """The outcome of one attempt of one run."""

    attempt: int
    train_loss: float
    fitted: bool
    reason: str
    epoch: int
    history: list[Row]
    options: dict[str, Any]
    start: int
    """Which start it was: the number that, with the seed, gives the untrained model."""
    rivals: list[dict[str, Any]]
    held_out: dict[str, float] = field(default_factory=dict)
    """What the held-out training bags said when the start was chosen: loss, auroc, epoch, bags, starts, chance."""

    @property
    def proven(self) -> bool:
        """Whether held-out training bags say that it found something that blind guesses would not."""
        return self.held_out.get("chance", 1.0) < CHANCE


@dataclass(frozen=True)
class Progress:
    """What a listener hears after each epoch."""

    attempt: int
    epoch: int
    epochs: int
    seeds: list[int]
    rows: list[Row]
    seconds: float
    seconds_left: float
    starts: int = 1
    """Starts per run that still train; their rows follow one another."""

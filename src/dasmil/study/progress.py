"""How training of a round is watched: by nobody, line by line in a log, or by a display of the caller's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dasmil.train import Progress


class Watcher(Protocol):
    """What training tells while it runs."""

    def epoch(self, progress: Progress) -> None:
        """An epoch has ended."""
        ...

    def note(self, text: str) -> None:
        """A sentence for the user."""
        ...


Watch = Callable[[str], AbstractContextManager[Watcher]]
"""Opens a watcher for one round; takes its title ("" or "fold 1/5  ")."""


class NoWatcher:
    """Nobody watches."""

    def epoch(self, progress: Progress) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


class Log:
    """One plain line an epoch, for the log of a worker."""

    def epoch(self, progress: Progress) -> None:
        """The line of `epoch_line`."""
        print(epoch_line(progress), flush=True)

    def note(self, text: str) -> None:
        """The sentence on a line of its own."""
        print(text, flush=True)


def unseen(_: str) -> AbstractContextManager[Watcher]:
    """Train without showing anything."""
    return nullcontext(NoWatcher())


def epoch_line(progress: Progress) -> str:
    """epoch 12/50  loss 0.31 (0.22-0.45)  val AUROC 0.94 (0.93-0.96)  1:05 left"""
    restart = f"attempt {progress.attempt + 1}  " if progress.attempt else ""
    parts = [f"{restart}epoch {progress.epoch}/{progress.epochs}"]
    if progress.starts > 1:
        parts.append(f"{progress.starts} starts")
    for column, name in (("train_loss", "loss"), ("val_auroc", "val AUROC")):
        found = [row[column] for row in progress.rows if column in row]
        values = [value for value in found if math.isfinite(value)]
        if found and not values:
            parts.append(f"{name} -")
        if values:
            spread = f" ({min(values):.3f}-{max(values):.3f})" if len(values) > 1 else ""
            parts.append(f"{name} {sum(values) / len(values):.3f}{spread}")
    minutes, seconds = divmod(round(progress.seconds_left), 60)
    parts.append(f"{minutes}:{seconds:02d} left")
    return "  ".join(parts)

"""How training of a round is watched: by nobody, line by line in a log, or by a display of the caller's own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from dasmil.train.progress import epoch_line, worth_a_line

if TYPE_CHECKING:
    from dasmil.engine import Progress as UnitProgress
    from dasmil.train import Progress


class Watcher(Protocol):
    """What training tells while it runs: in this process its epochs, on an engine how many units are done."""

    def epoch(self, progress: Progress) -> None:
        """An epoch has ended."""
        ...

    def units(self, progress: UnitProgress) -> None:
        """So far are the units of an engine."""
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

    def units(self, progress: UnitProgress) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


class Log:
    """Plain lines, about eight of an attempt, for the log of a worker."""

    def epoch(self, progress: Progress) -> None:
        """The line of `epoch_line`."""
        if worth_a_line(progress):
            print(epoch_line(progress), flush=True)

    def note(self, text: str) -> None:
        """The sentence on a line of its own."""
        print(text, flush=True)


def unseen(_: str) -> AbstractContextManager[Watcher]:
    """Train without showing anything."""
    return nullcontext(NoWatcher())

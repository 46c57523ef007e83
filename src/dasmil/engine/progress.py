"""How far a job of many units is, in one line."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Progress:
    """How far a whole job is, over all workers."""

    total: int
    skipped: int = 0
    done: int = 0
    running: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    first: float | None = None

    def count_done(self) -> None:
        """One more; the clock of the rate starts at the first, since the start of workers says nothing about units."""
        self.done += 1
        self.first = self.first or time.monotonic()

    def line(self) -> str:
        """done, failed, running, rate and time left."""
        seconds = time.monotonic() - (self.first or 0.0)
        rate = (self.done - 1) / seconds if self.done > 1 else 0.0
        left = self.total - self.skipped - self.done - len(self.failed)
        earlier = f" ({self.skipped} earlier)" if self.skipped else ""
        text = f"{self.skipped + self.done}/{self.total} done{earlier}, {len(self.failed)} failed"
        if self.running:
            text += f", {self.running} running"
        text += f", {60 * rate:.1f} a minute" if rate else ""
        return f"{text}, {duration(left / rate)} left" if rate and left else text


def duration(seconds: float | None) -> str:
    """A duration for people, to two digits or so; "?" while it is not known."""
    if seconds is None:
        return "?"
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

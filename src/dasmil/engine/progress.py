"""How far a job of many units is, in one line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Progress:
    """How far a whole job is."""

    total: int
    skipped: int = 0
    done: int = 0
    running: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def line(self) -> str:
        seconds = time.monotonic() - self.started
        rate = self.done / seconds if seconds > 0 else 0.0
        left = self.total - self.skipped - self.done - len(self.failed)
        remaining = f", about {left / rate / 60:.0f} min left" if rate and left else ""
        return (
            f"{self.skipped + self.done} of {self.total} done ({self.skipped} earlier), {len(self.failed)} failed, "
            f"{self.running} running, {60 * rate:.1f} a minute{remaining}"
        )


def print_progress() -> Callable[[Progress], None]:
    """A reporter: one line renewed on a terminal, a plain line now and then otherwise."""
    last = {"time": 0.0, "text": ""}
    terminal = sys.stderr.isatty()

    def report(progress: Progress) -> None:
        now, ended = time.monotonic(), not progress.running
        if not ended and now - last["time"] < (0.2 if terminal else 30.0):
            return
        last["time"] = now
        text = progress.line()
        if terminal:
            print(f"\r\x1b[2K{text}", end="\n" if ended else "", file=sys.stderr, flush=True)
        elif text != last["text"]:
            print(text, file=sys.stderr, flush=True)
        last["text"] = text

    return report

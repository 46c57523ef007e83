"""How far a job of many units is, in one line."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Progress:
    """How far a whole job is, over all workers."""

    total: int
    skipped: int = 0
    done: int = 0
    running: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    ended: bool = False

    def line(self) -> str:
        """done, failed, running, rate and time left."""
        seconds = time.monotonic() - self.started
        rate = self.done / seconds if seconds > 0 else 0.0
        left = self.total - self.skipped - self.done - len(self.failed)
        earlier = f" ({self.skipped} earlier)" if self.skipped else ""
        text = f"{self.skipped + self.done}/{self.total} done{earlier}, {len(self.failed)} failed"
        if self.running:
            text += f", {self.running} running"
        text += f", {60 * rate:.1f} a minute" if self.done else ""
        if rate and left:
            minutes = left / rate / 60
            text += f", {minutes:.0f} min left" if minutes < 90 else f", {minutes / 60:.1f} h left"
        return text


def print_progress() -> Callable[[Progress], None]:
    """A reporter: one line renewed on a terminal, a plain line now and then otherwise."""
    last = {"time": 0.0, "text": ""}
    terminal = sys.stderr.isatty()

    def report(progress: Progress) -> None:
        now = time.monotonic()
        if not progress.ended and now - last["time"] < (0.2 if terminal else 30.0):
            return
        text = progress.line()
        if terminal:
            shown = text[: shutil.get_terminal_size().columns - 1]
            print(f"\r\x1b[2K{shown}", end="\n" if progress.ended else "", file=sys.stderr, flush=True)
        elif text != last["text"]:
            print(text, file=sys.stderr, flush=True)
        last["time"], last["text"] = now, text

    return report

"""Training as a user watches it: one line that is written over, or a few lines where nobody can see it change."""

from __future__ import annotations

import math
import sys
from typing import TextIO

from dasmil.train.state import Progress

SHOWN = {
    "train_loss": "loss", "val_auroc": "val AUROC", "val_c_index": "val C-index", "val_r2": "val R2",
    "val_kappa": "val kappa", "val_macro": "val mean of targets",
}  # fmt: skip
LINES = 8
"""About so many lines of an attempt go to a log."""


def epoch_line(progress: Progress) -> str:
    """epoch 12/50  loss 0.31 (0.22-0.45)  val AUROC 0.94 (0.93-0.96)  1:05 left"""
    restart = f"attempt {progress.attempt + 1}  " if progress.attempt else ""
    parts = [f"{restart}epoch {progress.epoch}/{progress.epochs}"]
    if progress.starts > 1:
        parts.append(f"{progress.starts} starts")
    for column, name in SHOWN.items():
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


def worth_a_line(progress: Progress) -> bool:
    """Whether an epoch is told in a log: the first, the last, and about eight in between."""
    done, total = progress.epoch, progress.epochs
    return done in (1, total) or LINES * done // total > LINES * (done - 1) // total


class ProgressLine:
    """Shows progress on standard error: in a terminal or notebook one line that is written over, else a few lines."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() or _in_notebook()
        self._shown = 0

    def epoch(self, progress: Progress) -> None:
        """An epoch has ended."""
        line = epoch_line(progress)
        if self._live:
            self._write("\r" + line.ljust(self._shown))
            self._shown = len(line)
        elif worth_a_line(progress):
            self._write(line + "\n")

    def note(self, text: str) -> None:
        """A sentence on a line of its own."""
        self.close()
        self._write(text + "\n")

    def close(self) -> None:
        """End the line that is written over."""
        if self._shown:
            self._write("\n")
            self._shown = 0

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _in_notebook() -> bool:
    """Whether this is a notebook, whose output takes a line that is written over although it is no terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"

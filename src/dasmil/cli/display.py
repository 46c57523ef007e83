"""The one display of progress, on standard error: one renewed line on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.text import Text

    from dasmil.engine import Progress as UnitProgress
    from dasmil.train import Progress

PAUSE = 30.0  # seconds between two lines of a log


class Display:
    """Shows how far some work is; a context manager. prefix: begins every line; quiet: show nothing at all.

    What is not a terminal gets a line every half minute, so quick work leaves none in a log, and a few epochs of
    training. Sentences of `note` stay on either.
    """

    def __init__(self, prefix: str = "", *, quiet: bool = False) -> None:
        from rich.console import Console

        self._prefix, self._quiet = prefix, quiet
        self._console = Console(stderr=True, highlight=False, markup=False)
        live = self._console.is_terminal and not quiet
        self._status = self._console.status(self._cut(f"{prefix}Preparing")) if live else None
        self._printed = time.monotonic()

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def line(self, text: str) -> None:
        """How far it is now."""
        if self._status:
            self._status.update(self._cut(self._prefix + text))
        elif not self._quiet and time.monotonic() - self._printed >= PAUSE:
            self._printed = time.monotonic()
            say(self._prefix + text)

    def note(self, text: str) -> None:
        """A sentence that stays."""
        if not self._quiet:
            self._console.print(text, soft_wrap=True)

    def epoch(self, progress: Progress) -> None:
        """An epoch of training has ended; a log has about eight of an attempt."""
        from dasmil.train.progress import epoch_line, worth_a_line

        if self._status:
            self.line(epoch_line(progress))
        elif worth_a_line(progress) and not self._quiet:
            say(self._prefix + epoch_line(progress))

    def units(self, progress: UnitProgress) -> None:
        """An engine's units: how many are done; the last count stays."""
        (self.note if progress.ended else self.line)(progress.line())

    def _cut(self, text: str) -> Text:
        """One line of the screen, beside the turning sign; square brackets are brackets."""
        from rich.text import Text

        room = self._console.width - 2
        return Text(text if len(text) <= room else text[: room - 1] + "…")


def code_of(left_out: bool) -> int:
    """The exit code of a command that did its work: 1, with the reason, where slides were left out."""
    if left_out:
        say("Exit code 1: slides were left out, see above (--strict refuses them instead).")
    return 1 if left_out else 0


def say(text: str) -> None:
    """A sentence on standard error."""
    print(text, file=sys.stderr, flush=True)

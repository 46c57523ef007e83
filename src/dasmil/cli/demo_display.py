"""Progress of the demo: two models at once in one line."""

from __future__ import annotations

import sys


class Progress:
    """One live line on a terminal; otherwise a plain line every few epochs; on standard error."""

    def __init__(self, names: list[str], epochs: int) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        text = f"Training {' and '.join(names)}: {epochs} epochs each, AUROC on validation bags"
        self._status = self._console.status(text) if self._console.is_terminal else None
        self._parts = dict.fromkeys(names, "starting")
        self._left = dict.fromkeys(names, 0.0)
        self._epochs = epochs
        if not self._status:
            print(text, file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def update(self, name: str, state: tuple[int, float, float]) -> None:
        """A model finished an epoch: its number, validation AUROC, seconds left."""
        epoch, auroc, self._left[name] = state
        self._parts[name] = f"{epoch}/{self._epochs} AUROC {auroc:.3f}"
        minutes, seconds = divmod(round(max(self._left.values())), 60)
        line = ", ".join(f"{key} {part}" for key, part in self._parts.items()) + f", {minutes}:{seconds:02d} left"
        if self._status:
            self._status.update(line)
        elif epoch % max(1, self._epochs // 5) == 0 or epoch == self._epochs:
            print(f"{name} {self._parts[name]}, {minutes}:{seconds:02d} left", file=sys.stderr, flush=True)

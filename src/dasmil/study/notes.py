"""How the workflow speaks: it hands sentences to whoever called it, and prints nothing by itself."""

from __future__ import annotations

from collections.abc import Callable

Note = Callable[[str], None]
"""Takes one sentence for the user."""


def silent(_: str) -> None:
    """Nobody listens."""

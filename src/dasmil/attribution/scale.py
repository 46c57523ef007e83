"""The colour scale of a score, decided once: what maps, pages and the viewer draw agrees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dasmil.vocabulary import score as words

CLIPPED_FROM = 200  # instances; below, the scale reaches the largest value
PERCENTILE = 99.5


@dataclass(frozen=True)
class ColourScale:
    """Ends of a colour scale: symmetric about zero where the score is signed, from zero where not.

    note: how the ends were chosen, where that must be said.
    """

    low: float
    high: float
    signed: bool
    note: str = ""

    def place(self, values: np.ndarray) -> np.ndarray:
        """Where values lie between the ends, 0 to 1."""
        return np.clip((values - self.low) / (self.high - self.low), 0, 1)

    def strength(self, values: np.ndarray) -> np.ndarray:
        """How much a value says, 0 (nothing) to 1: what lies over a picture is as opaque as this."""
        return np.clip((np.abs(values) if self.signed else values) / self.high, 0, 1)


def colour_scale(name: str, values: np.ndarray) -> ColourScale:
    """The scale of the score `name` for the values of one bag; its kind depends on the name alone, never on values."""
    signed = words(name).signed
    known = values[np.isfinite(values)]
    sizes = np.abs(known) if signed else known
    clipped = len(sizes) >= CLIPPED_FROM
    high = float(np.percentile(sizes, PERCENTILE)) if clipped else float(sizes.max(initial=0.0))
    if high <= 0:
        high, clipped = float(sizes.max(initial=0.0)) or 1.0, False
    note = f"clipped at the {PERCENTILE:g}th percentile" if clipped else ""
    return ColourScale(-high if signed else 0.0, high, signed, note)

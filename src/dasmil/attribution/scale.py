"""The colour scale of a score, decided once: what maps, pages, the viewer and QuPath's tiles draw agrees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dasmil.vocabulary import score as words

MANY = 200
"""Instances; with fewer, colours are proportional to values."""
PERCENTILE = 99.5
HEAVY = 3.0
"""Colours are logarithmic where the largest value is more than this many times the percentile."""
DECADES = 1000.0
"""A logarithmic scale tells values apart down to the largest over this."""


@dataclass(frozen=True)
class ColourScale:
    """Ends of a colour scale: symmetric about zero where the score is signed, from zero where not.

    linear: colours are proportional to values up to this size and to their logarithm above it (asinh); 0: proportional
    throughout. Nothing is clipped: the ends are the largest value.
    """

    low: float
    high: float
    signed: bool
    linear: float = 0.0

    @property
    def note(self) -> str:
        """How the scale departs from proportional, where it does."""
        return f"logarithmic beyond {'±' if self.signed else ''}{self.linear:.2g}" if self.linear else ""

    def strength(self, values: np.ndarray) -> np.ndarray:
        """How much a value says, 0 (nothing) to 1: what lies over a picture is as opaque as this."""
        sizes = np.clip(np.abs(values) if self.signed else values, 0, self.high)
        return (
            np.arcsinh(sizes / self.linear) / np.arcsinh(self.high / self.linear) if self.linear else sizes / self.high
        )

    def place(self, values: np.ndarray) -> np.ndarray:
        """Where values lie between the ends, 0 to 1."""
        strength = self.strength(values)
        return 0.5 + 0.5 * np.sign(values) * strength if self.signed else strength


def colour_scale(name: str, values: np.ndarray) -> ColourScale:
    """The scale of the score `name` for the values of one bag; whether it is signed depends on the name alone."""
    signed = words(name).signed
    known = values[np.isfinite(values)]
    sizes = np.abs(known) if signed else known
    high = float(sizes.max(initial=0.0))
    if high <= 0:
        return ColourScale(-1.0 if signed else 0.0, 1.0, signed)
    usual = float(np.percentile(sizes, PERCENTILE))
    heavy = len(sizes) >= MANY and high > HEAVY * usual
    return ColourScale(-high if signed else 0.0, high, signed, max(usual, high / DECADES) if heavy else 0.0)

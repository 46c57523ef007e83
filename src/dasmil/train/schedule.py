"""How the learning rate moves over training, as a factor of the one that was asked for."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine", "hold-linear"]


def factor(schedule: Schedule, step: int, total: int, warmup: int = 0) -> float:
    """Factor at a step (0 is the first): a linear rise over the warm-up steps, then

    constant: 1; linear and cosine: down to 0 at the end; hold-linear: 1 for two thirds, then linearly to 0.
    """
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, total - warmup)
    match schedule:
        case "constant":
            return 1.0
        case "linear":
            return 1.0 - done
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * done))
        case "hold-linear":
            return min(1.0, 3.0 * (1.0 - done))

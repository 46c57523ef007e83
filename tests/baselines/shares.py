"""Slides whose label is how many tiles are of a rare type, wherever they lie; the shares of the classes overlap."""

from __future__ import annotations

import numpy as np
import torch

from dasmil.types import Bag


def shares(slides: int, seed: int = 0, *, more: float = 0.03) -> list[Bag]:
    """Bags of 300 tiles; positive ones have this share more of the type than others, which have 1 to 5 %."""
    rng = np.random.default_rng(seed)
    means = 1.2 * np.random.default_rng(99).standard_normal((5, 96))
    bags = []
    for number in range(slides):
        kinds = rng.integers(0, 4, 300)
        kinds[rng.random(300) < rng.uniform(0.01, 0.05) + more * (number % 2)] = 4
        features = torch.from_numpy(means[kinds] + rng.standard_normal((300, 96))).float()
        places = torch.from_numpy(2000 * rng.random((300, 2))).float()
        bags.append(Bag(features, places, "um", f"s{seed}-{number}", label=number % 2))
    return bags

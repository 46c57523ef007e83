"""Small cohorts that composition alone decides: class c has more instances of type c, wherever they lie."""

from __future__ import annotations

import numpy as np
import torch

from dasmil.types import Bag

FEATURES, TYPES, TILES = 24, 5, 80


def compositions(slides: int, seed: int = 0, *, classes: int = 2, more: float = 0.25, blind: bool = False) -> list[Bag]:
    """blind: labels that have nothing to do with the slides."""
    rng = np.random.default_rng(seed)
    means = 1.5 * np.random.default_rng(7).standard_normal((TYPES, FEATURES))
    bags = []
    for number in range(slides):
        label = number % classes
        shares = rng.dirichlet(np.full(TYPES, 6.0))
        if not blind:
            shares = (1 - more) * shares + more * np.eye(TYPES)[label]
        kinds = rng.choice(TYPES, TILES, p=shares)
        features = means[kinds] + rng.standard_normal((TILES, FEATURES))
        bags.append(
            Bag(
                torch.from_numpy(features).float(),
                torch.from_numpy(rng.uniform(0, 2000, (TILES, 2))).float(),
                "um",
                f"s{seed}-{number}",
                label=label,
                patient_id=f"p{seed}-{number}",
            )
        )
    return bags

"""A small cohort as others make them: two rare types of tiles among many, noise in all features, stain of slides."""

from __future__ import annotations

import numpy as np
import torch

from dasmil.types import Bag

FEATURES, BACKGROUND, RADIUS_UM, TILE_UM = 96, 4, 400.0, 64.0


def rare_pairs(slides: int, seed: int = 0, *, separation: float = 1.2, shift: float = 0.5) -> list[Bag]:
    """Positive slides: a tile of type A lies within 400 um of one of type B; negative ones: none within 520 um."""
    rng = np.random.default_rng(seed)
    means = separation * np.random.default_rng(99).standard_normal((BACKGROUND + 2, FEATURES))
    side = 18
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2)
    bags = []
    for number in range(slides):
        label = number % 2
        place = (grid + 0.5) * TILE_UM
        kinds = (grid[:, 0] * BACKGROUND // side + rng.integers(BACKGROUND)) % BACKGROUND
        first = rng.choice(len(grid), 3, replace=False)
        nearest = np.linalg.norm(place[:, None] - place[first][None], axis=-1).min(1)
        second = rng.choice(np.flatnonzero(nearest > 1.3 * RADIUS_UM), 3, replace=False)
        if label:
            second[0] = rng.choice(np.flatnonzero((nearest <= RADIUS_UM) & (nearest > 0)))
        kinds[first], kinds[second] = BACKGROUND, BACKGROUND + 1
        features = means[kinds] + rng.standard_normal((len(grid), FEATURES)) + shift * rng.standard_normal(FEATURES)
        bags.append(
            Bag(
                torch.from_numpy(features).float(),
                torch.from_numpy(place).float(),
                "um",
                f"s{seed}-{number}",
                label=label,
            )
        )
    return bags

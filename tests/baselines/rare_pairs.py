"""A small cohort as others make them: two rare types of tiles among many, noise in all features, stain of slides."""

from __future__ import annotations

import numpy as np
import torch

from dasmil.types import Bag

FEATURES, BACKGROUND, RADIUS_UM, TILE_UM, SIDE = 96, 4, 400.0, 64.0, 18


def rare_pairs(slides: int, seed: int = 0, *, separation: float = 1.2, shift: float = 0.5) -> list[Bag]:
    """Positive slides: a tile of type A lies within 400 um of one of type B; negative ones: none within 520 um."""
    rng = np.random.default_rng(seed)
    means = separation * np.random.default_rng(99).standard_normal((BACKGROUND + 2, FEATURES))
    grid = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE)), -1).reshape(-1, 2)
    bags = []
    for number in range(slides):
        label = number % 2
        place = (grid + 0.5) * TILE_UM
        kinds = (grid[:, 0] * BACKGROUND // SIDE + rng.integers(BACKGROUND)) % BACKGROUND
        first = rng.choice(len(grid), 3, replace=False)
        nearest = np.linalg.norm(place[:, None] - place[first][None], axis=-1).min(1)
        second = rng.choice(np.flatnonzero(nearest > 1.3 * RADIUS_UM), 3, replace=False)
        if label:
            second[0] = rng.choice(np.flatnonzero((nearest <= RADIUS_UM) & (nearest > 0)))
        kinds[first], kinds[second] = BACKGROUND, BACKGROUND + 1
        bags.append(_bag(rng, means, kinds, place, shift, f"s{seed}-{number}", label))
    return bags


def many_near(slides: int, seed: int = 0) -> list[Bag]:
    """Twelve tiles of type A and of type B on every slide; positive: nine B lie within 130 um of an A, negative: three
    do, and the others beyond 170 um.
    """
    rng = np.random.default_rng(seed)
    means = 1.2 * np.random.default_rng(99).standard_normal((BACKGROUND + 2, FEATURES))
    grid = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE)), -1).reshape(-1, 2)
    place = (grid + 0.5) * TILE_UM
    bags = []
    for number in range(slides):
        label = number % 2
        kinds = (grid[:, 0] * BACKGROUND // SIDE + rng.integers(BACKGROUND)) % BACKGROUND
        first = rng.choice(len(grid), 12, replace=False)
        nearest = np.linalg.norm(place[:, None] - place[first][None], axis=-1).min(1)
        near, far = np.flatnonzero((nearest <= 130) & (nearest > 0)), np.flatnonzero(nearest > 170)
        count = 9 if label else 3
        kinds[first] = BACKGROUND
        kinds[rng.choice(near, count, replace=False)] = BACKGROUND + 1
        kinds[rng.choice(far, 12 - count, replace=False)] = BACKGROUND + 1
        bags.append(_bag(rng, means, kinds, place, 0.2, f"s{seed}-{number}", label))
    return bags


def _bag(rng, means, kinds, place, shift, name: str, label: int) -> Bag:
    features = means[kinds] + rng.standard_normal((len(kinds), FEATURES)) + shift * rng.standard_normal(FEATURES)
    return Bag(torch.from_numpy(features).float(), torch.from_numpy(place).float(), "um", name, label=label)

"""Small bags for tests of training: one-hot types at positions; positive when types 0 and 1 lie close together."""

from __future__ import annotations

import numpy as np
import torch

from dasmil.types import Bag


def toy_bags(count: int, seed: int = 0, *, sizes: tuple[int, ...] = (5, 6, 7), prefix: str = "toy") -> list[Bag]:
    rng = np.random.default_rng(seed)
    bags = []
    for i in range(count):
        n = int(rng.choice(sizes))
        types = rng.integers(2, 4, n)
        coords = rng.uniform(0, 100, (n, 2))
        label = i % 2
        types[:2] = [0, 1]
        coords[1] = coords[0] + (6 if label else 60) * np.array([np.cos(i), np.sin(i)])
        bags.append(
            Bag(torch.eye(4)[torch.from_numpy(types)], coords.astype(np.float32), "um", f"{prefix}/{i}", label=label)
        )
    return bags

"""Clusters of features, to colour instances that have no kinds of their own: k-means, the same every time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

CLUSTERS = 8
LEARNED_FROM = 5000  # instances; all others are assigned to what these give
ROUNDS = 30
PARTS = 4  # of a picture, along each side


def cluster(features: Tensor, k: int = CLUSTERS) -> Tensor:
    """The cluster of every instance [n], 0 to k - 1, the largest first; k-means++ starts, standardised features."""
    if features.ndim == 4:  # pictures by the mean colours of their parts
        features = torch.cat([adaptive_avg_pool2d(part.float(), PARTS) for part in features.detach().split(512)])
    x = features.detach().flatten(1).float()
    x = torch.nan_to_num((x - x.mean(0)) / x.std(0, unbiased=False).clamp(min=1e-6))
    rng = np.random.default_rng(0)
    n = len(x)
    k = min(k, n)
    chosen = np.sort(rng.choice(n, min(n, LEARNED_FROM), replace=False))
    sample = x[torch.from_numpy(chosen)]
    centres = _starts(sample, k, rng)
    for _ in range(ROUNDS):
        nearest = _nearest(sample, centres)
        moved = torch.zeros_like(centres).index_add_(0, nearest, sample)
        count = torch.bincount(nearest, minlength=k)
        moved = torch.where(count[:, None] > 0, moved / count.clamp(min=1)[:, None], centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    found = torch.cat([_nearest(part, centres) for part in x.split(65536)])
    order = torch.bincount(found, minlength=k).argsort(descending=True, stable=True)
    return order.argsort()[found]


def _starts(sample: Tensor, k: int, rng: np.random.Generator) -> Tensor:
    chosen = [int(rng.integers(len(sample)))]
    squared = (sample - sample[chosen[0]]).square().sum(1)
    for _ in range(k - 1):
        weight = squared.double().numpy()
        total = weight.sum()
        chosen.append(int(rng.choice(len(sample), p=weight / total)) if total > 0 else int(rng.integers(len(sample))))
        squared = torch.minimum(squared, (sample - sample[chosen[-1]]).square().sum(1))
    return sample[chosen].clone()


def _nearest(x: Tensor, centres: Tensor) -> Tensor:
    return (centres.square().sum(1) - 2 * x @ centres.T).argmin(1)

"""Integrated gradients (Sundararajan et al. 2017): contributions for every model, the error of their sum reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dasmil.models.base import MILModel

BATCH_INSTANCES = 2048  # steps of the path are computed together up to this many instances
FIRST_STEPS, MOST_STEPS = 32, 512


@dataclass(frozen=True, eq=False)
class PathIntegral:
    """attributions [n] that sum to logit - baseline_logit, up to the residual; steps: how finely the path was cut."""

    attributions: Tensor
    logit: float
    baseline_logit: float
    residual: float
    steps: int


def target_logit(logit: Tensor, target: int, n_classes: int) -> Tensor:
    """The logit of one class [*batch]; a single logit is that of class 1, and its negative that of class 0."""
    if n_classes > 2:
        return logit[..., target]
    return logit if target == 1 else -logit


def default_baseline(features: Tensor) -> Tensor:
    """What stands for 'nothing there': zeros for feature vectors, an empty picture (the darkest pixel) for pictures."""
    return torch.full_like(features, float(features.min())) if features.ndim > 2 else torch.zeros_like(features)


def integrated_gradients(
    model: MILModel,
    features: Tensor,
    coords: Tensor,
    section: Tensor | None = None,
    *,
    target: int = 1,
    baseline: Tensor | None = None,
    tolerance: float = 0.01,
) -> PathIntegral:
    """Integrate the gradient of the target's logit along the straight path from `baseline` to `features` [n, *f].

    The path is cut finer, up to 512 steps, until the sum is right to `tolerance` (relative to the change of the logit,
    at least 1). Coordinates stay as they are. The model must be in evaluation mode.
    """
    start = default_baseline(features) if baseline is None else baseline
    change = features - start
    n = features.shape[0]
    n_classes = int(model.config["n_classes"])

    def run(x: Tensor) -> Tensor:
        batch = x.shape[0]
        output = model(
            x,
            coords.expand(batch, *coords.shape),
            section=None if section is None else section.expand(batch, *section.shape),
        )
        return target_logit(output.logit, target, n_classes)

    with torch.no_grad():
        first, last = (float(run(x[None])[0]) for x in (start, features))
    wanted = last - first
    steps = FIRST_STEPS
    while True:
        total = torch.zeros(n, dtype=torch.float64, device=features.device)
        points = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
        for part in points.split(max(1, BATCH_INSTANCES // n)):
            at = part.to(features).view(-1, *[1] * features.ndim)
            x = (start + at * change).requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(run(x).sum(), x)
            total += (gradient * change).flatten(2).sum((0, 2)).double()
        total /= steps
        residual = wanted - float(total.sum())
        if abs(residual) <= tolerance * max(1.0, abs(wanted)) or 2 * steps > MOST_STEPS:
            return PathIntegral(total.to(features.dtype), last, first, residual, steps)
        steps *= 2

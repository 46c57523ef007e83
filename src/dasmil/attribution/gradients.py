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
SHORTEST = 2.0**-40  # of an interval, as a share of the path: what is left within it is a jump


@dataclass(frozen=True, eq=False)
class PathIntegral:
    """attributions [n] that sum to logit - baseline_logit, up to the residual; steps: how finely the path was cut."""

    attributions: Tensor
    logit: float
    baseline_logit: float
    residual: float
    steps: int


def target_logit(logit: Tensor, target: int, outputs: int) -> Tensor:
    """The logit of one class (or output) [*batch]; a single one is that of class 1, its negative that of class 0."""
    if outputs > 1:
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

    The path is cut finer where the logit changes fast, up to 512 steps, until the sum is right to `tolerance` (relative
    to the change of the logit, at least 1). A jump of the logit, where a model chooses other instances, has no gradient
    and stays in the residual. Coordinates stay as they are. The model must be in evaluation mode.
    """
    start = default_baseline(features) if baseline is None else baseline
    path = _Path(model, features, start, coords, section, target)
    edges = torch.linspace(0, 1, FIRST_STEPS + 1, dtype=torch.float64)
    parts = path.integrals(edges[:-1], edges[1:])
    first, last = path.values(edges[[0, -1]]).tolist()
    wanted = last - first
    bound = tolerance * max(1.0, abs(wanted))
    if abs(wanted - float(parts.sum())) > bound:
        edges, parts = _refined(path, edges, parts, bound)
    total = parts.sum(0)
    return PathIntegral(total.to(features.dtype), last, first, wanted - float(total.sum()), len(parts))


def _refined(path: _Path, edges: Tensor, parts: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Cut intervals in halves, worst first, until no error is left or it stays however short its interval is.

    The error of an interval is known: the change of the logit over it minus its part of the integral.
    """
    values = path.values(edges)
    while True:
        errors = (values.diff() - parts.sum(1)).abs()
        open_ = (errors > bound / len(parts)) & (edges.diff() > SHORTEST)
        room = MOST_STEPS - len(parts)
        if float(errors.sum()) <= bound or not open_.any() or room <= 0:
            return edges, parts
        worst = torch.where(open_, errors, 0.0).argsort(descending=True)[: min(int(open_.sum()), room)].sort().values
        middle = (edges[worst] + edges[worst + 1]) / 2
        halves = path.integrals(
            torch.stack([edges[worst], middle], 1).flatten(), torch.stack([middle, edges[worst + 1]], 1).flatten()
        )
        kept = torch.ones(len(parts), dtype=torch.bool)
        kept[worst] = False
        starts = torch.cat([edges[:-1][kept], torch.stack([edges[worst], middle], 1).flatten()])
        parts = torch.cat([parts[kept], halves])[starts.argsort()]
        values = torch.cat([values, path.values(middle)])
        edges = torch.cat([edges, middle])
        order = edges.argsort()
        edges, values = edges[order], values[order]


class _Path:
    """The straight path of a bag's features from a baseline (0) to themselves (1), and the target's logit along it."""

    def __init__(
        self, model: MILModel, features: Tensor, start: Tensor, coords: Tensor, section: Tensor | None, target: int
    ) -> None:
        self.model, self.start, self.change, self.target = model, start, features - start, target
        self.coords, self.section = coords, section
        self.batch = max(1, BATCH_INSTANCES // len(features))

    def _at(self, places: Tensor) -> Tensor:
        return self.start + places.to(self.start).view(-1, *[1] * self.start.ndim) * self.change

    def _logit(self, x: Tensor) -> Tensor:
        batch, section = x.shape[0], self.section
        output = self.model(
            x,
            self.coords.expand(batch, *self.coords.shape),
            section=None if section is None else section.expand(batch, *section.shape),
        )
        return target_logit(output.logit, self.target, self.model.n_logits)

    def values(self, places: Tensor) -> Tensor:
        """The logit at each place [k], float64."""
        with torch.no_grad():
            return torch.cat([self._logit(self._at(p)).double().cpu() for p in places.split(self.batch)])

    def integrals(self, low: Tensor, high: Tensor) -> Tensor:
        """The gradient times the change of each instance over each interval [k, n], by its middle, float64."""
        found = []
        for places in ((low + high) / 2).split(self.batch):
            x = self._at(places).requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(self._logit(x).sum(), x)
            found.append((gradient * self.change).flatten(2).sum(-1).double().cpu())
        return torch.cat(found) * (high - low).unsqueeze(1)

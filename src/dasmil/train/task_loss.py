"""Losses of targets that are no single class: hazards of censored times, Cox, numbers, several targets at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from torch import Tensor
from torch.nn import functional as F

from dasmil.tasks import ClassTarget, NumberTarget, Task, TimeTarget
from dasmil.train.cox import RiskSet
from dasmil.train.loss import Lesson, class_weights, entropy
from dasmil.types import Output

if TYPE_CHECKING:
    from dasmil.train.feed import Facts

Array = NDArray[np.float64]
LEARNED = 0.98
"""A training loss below this share of a constant guess counts as fitted."""
SHUFFLES = 200
"""Orders of the bags from which the spread of a blind guess is known."""


class _Part(Protocol):
    """The loss of one target."""

    guess: float

    def each(self, outputs: Tensor, values: Tensor) -> Tensor:
        """Losses [*batch] of outputs [*batch, outputs] and values [*batch, columns], none of them missing."""
        ...


class HazardLoss:
    """Likelihood of censored times in bins: -log of the hazard of the event's bin, -log (1 - hazard) of bins survived.

    The last output is the logit of the hazard of each bin. Gensheimer and Narasimhan 2019, PeerJ 7:e6257.
    """

    def __init__(self, target: TimeTarget, values: Array) -> None:
        self.target = target
        ends = torch.tensor(target.edges, dtype=torch.float64)
        self.ends, self.starts = ends, torch.cat([ends.new_zeros(1), ends[:-1]])
        lived, seen = self.coded(torch.from_numpy(values))
        died, risk = seen.sum(0), (lived + seen).sum(0)
        hazard = (died / risk.clamp(min=1)).clamp(1e-6, 1 - 1e-6)
        self.guess = float(-(seen * hazard.log() + lived * (1 - hazard).log()).sum(-1).mean())
        self.pooled = torch.logit(hazard)

    def coded(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Bins survived and the bin of the event, both [*batch, bins] of 0 and 1."""
        device = values.device
        ends, starts = self.ends.to(device), self.starts.to(device)
        times, event = values[..., 0].double(), values[..., 1] == 1
        bins = torch.searchsorted(ends, times.contiguous()).clamp(max=len(ends) - 1)
        past_middle = times >= ((starts + ends) / 2)[bins]
        number = torch.arange(len(ends), device=device)
        lived = number < (bins + (~event & past_middle)).unsqueeze(-1)
        seen = (number == bins.unsqueeze(-1)) & event.unsqueeze(-1)
        return lived.double(), seen.double()

    def each(self, outputs: Tensor, values: Tensor) -> Tensor:
        lived, seen = self.coded(values)
        logit = outputs if outputs.dtype == torch.float64 else outputs.float()
        return -(F.logsigmoid(logit) * seen.to(logit) + F.logsigmoid(-logit) * lived.to(logit)).sum(-1)


class NumberError:
    """Huber's loss or the squared error of a number in standard deviations of the training bags."""

    def __init__(self, target: NumberTarget, values: Array) -> None:
        self.target = target
        known = values[np.isfinite(values[:, 0]), :1]
        best = minimize_scalar(
            lambda c: float(self.each(torch.full((len(known), 1), c), torch.from_numpy(known)).mean())
        )
        self.guess = float(best.fun)  # pyright: ignore[reportAttributeAccessIssue]

    def each(self, outputs: Tensor, values: Tensor) -> Tensor:
        assert self.target.mean is not None
        assert self.target.sd is not None
        said = outputs[..., 0] if outputs.dtype == torch.float64 else outputs[..., 0].float()
        truth = ((values[..., 0] - self.target.mean) / self.target.sd).to(said)
        if self.target.loss == "squared":
            return (said - truth).square()
        return 2 * F.huber_loss(said, truth, reduction="none")  # twice: the square of small errors


class ClassLoss:
    """Cross entropy of one target of several."""

    def __init__(self, target: ClassTarget, values: Array, balance: bool) -> None:
        known = values[np.isfinite(values[:, 0]), 0].astype(np.int64)
        counts = np.bincount(known, minlength=len(target.classes)).astype(np.float64)
        weights = class_weights(counts) if balance else np.ones(len(counts))
        mass = weights * counts
        self.guess = float(-(mass * np.log(mass / mass.sum())).sum() / counts.sum())
        self.weights = torch.tensor(weights, dtype=torch.float32)

    def each(self, outputs: Tensor, values: Tensor) -> Tensor:
        labels, weights = values[..., 0].long(), self.weights.to(outputs.device)
        return entropy(outputs[..., 0] if len(weights) == 2 else outputs, labels, weights)


class TaskLoss:
    """The loss of a task: the mean over its targets, each in the bags that have it.

    Cox's partial likelihood belongs to a set of bags and not to one: a step sees one bag, and the last risks of all
    others (`RiskSet`). Its value is 1 plus what it lies above that of equal risks, per event: 1 is a constant guess in
    sets of any size.
    """

    trained = "concordance"
    rank = "concordance"

    def __init__(self, facts: Facts, balance: bool) -> None:
        """facts: of the training bags; balance: weigh classes by their inverse frequency there."""
        assert facts.task is not None
        self.task: Task = facts.task
        self.parts = [_part(target, facts.targets[:, own], balance) for target, own, _ in self.task.parts()]
        self.constant_guess = float(np.mean([1.0 if part is None else part.guess for part in self.parts]))
        self.exact = False

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.task.metrics

    @property
    def constant(self) -> Tensor | None:
        """Outputs of a constant guess, where zero is far from one: the hazards of all training bags."""
        first = self.parts[0]
        return first.pooled.float() if isinstance(first, HazardLoss) else None

    def lesson(self, facts: Facts, outputs: Callable[[], Array], device: torch.device) -> Lesson:
        values = torch.from_numpy(facts.targets).to(device)
        kept = None
        if None in self.parts:
            before = torch.from_numpy(outputs()).float().to(device)
            kept = RiskSet(values, before.reshape(*before.shape[:2], -1)[..., 0])

        def losses(output: Output, bags: Tensor, run: int | None) -> Tensor:
            said = self._wide(output.logit, bags)
            loss = output.bag_weight * self._losses(said, values[bags], bags, run, kept)
            if output.side_logits is not None:
                wide = output.side_logits if output.side_logits.ndim > bags.ndim + 1 else output.side_logits[..., None]
                for side in wide.unbind(bags.ndim):
                    loss = loss + output.side_weight * self._losses(side, values[bags], bags, run, kept)
            if kept is not None:
                kept.note(said[..., 0], bags, run)
            return loss if output.aux_loss is None else loss + output.aux_loss

        return losses

    def _wide(self, logit: Tensor, bags: Tensor) -> Tensor:
        """Outputs [*batch, outputs]."""
        return logit.unsqueeze(-1) if logit.ndim == bags.ndim else logit

    def _losses(self, said: Tensor, values: Tensor, bags: Tensor, run: int | None, kept: RiskSet | None) -> Tensor:
        found: list[Tensor] = []
        for part, (_, own, out) in zip(self.parts, self.task.parts(), strict=True):
            if part is None:
                assert kept is not None
                found.append(kept.loss(said[..., out][..., 0], bags, run))
            else:
                found.append(_known(part, said[..., out], values[..., own]))
        return torch.stack(found).mean(0) if len(found) > 1 else found[0]

    def of_set(self, logits: Array, facts: Facts) -> list[float]:
        values = torch.from_numpy(facts.targets)
        return [self._of_set(torch.from_numpy(row).reshape(len(values), -1), values) for row in logits]

    def _of_set(self, said: Tensor, values: Tensor) -> float:
        found: list[float] = []
        for part, (_, own, out) in zip(self.parts, self.task.parts(), strict=True):
            if part is None:
                found.append(float(RiskSet(values, said[None, :, 0]).value()[0]))
                continue
            known = torch.isfinite(values[:, own]).all(-1)
            each = part.each(said[known][:, out], values[known][:, own])
            found.append(float(each.mean()) if len(each) else float("nan"))
        left = [value for value in found if not np.isnan(value)]
        return float(np.mean(left)) if left else float("nan")

    def metric(self, facts: Facts, logits: Array, name: str, bags: NDArray[np.int64] | None = None) -> float:
        values = facts.targets if bags is None else facts.targets[bags]
        said = logits.reshape(len(values), -1)
        if name == self.rank:
            return self.task.concordance(values, said)
        return self.task.quick(values, said, name)

    def fitted_below(self, share: float) -> float:
        """Whatever is below a constant guess: much of a time or a number may be nobody's to know."""
        return LEARNED * self.constant_guess

    def chance(self, facts: Facts, value: float, tried: int) -> float:
        """The spread of a blind guess is that over random orders of the bags, taken as normal about 0.5."""
        rng = np.random.default_rng(0)
        guesses = [rng.standard_normal((len(facts.targets), self.task.outputs)) for _ in range(SHUFFLES)]
        spread = np.nanstd([self.task.concordance(facts.targets, guess) for guess in guesses])
        if not np.isfinite(value) or not spread > 0:
            return 1.0
        return float(min(1.0, tried * norm.sf((value - 0.5) / spread)))


def _part(target: object, values: Array, balance: bool) -> HazardLoss | NumberError | ClassLoss | None:
    """The loss of a target; None for Cox, which has none of a single bag."""
    if isinstance(target, TimeTarget):
        return None if target.method == "cox" else HazardLoss(target, values)
    if isinstance(target, NumberTarget):
        return NumberError(target, values)
    assert isinstance(target, ClassTarget)
    return ClassLoss(target, values, balance)


def _known(part: _Part, said: Tensor, values: Tensor) -> Tensor:
    """Losses, 0 where the value is missing."""
    known = torch.isfinite(values).all(-1)
    each = part.each(said, torch.where(torch.isfinite(values), values, torch.zeros_like(values)))
    return torch.where(known, each, torch.zeros_like(each))

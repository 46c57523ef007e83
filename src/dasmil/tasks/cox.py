"""Cox's partial likelihood when a step sees one bag: the whole risk set, of which only that bag has a gradient."""

from __future__ import annotations

import torch
from torch import Tensor


class RiskSet:
    """The risks of all bags of an epoch, each the last one that was said; ties as Efron (1977) has them.

    values [n, 2]: times and events; risks [runs, n]. L = mean over events e of log(sum_k w_ek exp(r_k)) - r_e, where
    w_ek is 1 for those at risk at the time of e, less l / d for the d bags with their event at the same time, of which
    e is number l = 0, 1, ... With all risks up to date, the mean over bags of the gradients of `loss` is the gradient
    of L over all bags at once; here the other risks are those of their own last step.
    """

    def __init__(self, values: Tensor, risks: Tensor) -> None:
        times, seen = values[:, 0], values[:, 1] == 1
        self.events = seen.nonzero().flatten()
        at = times[self.events]
        tied = (times == at[:, None]) & seen
        number = torch.tril(at == at[:, None], diagonal=-1).sum(1)
        share = number / tied.sum(1).clamp(min=1)
        self.weights = ((times >= at[:, None]).to(risks) - tied.to(risks) * share[:, None].to(risks)).T.contiguous()
        self.risks = risks.detach().clone()
        self.equal = self.weights.sum(0).log().mean() if len(self.events) else risks.new_zeros(())

    def value(self, risks: Tensor | None = None) -> Tensor:
        """1 + L - (L of equal risks) [runs]; NaN where no bag has its event."""
        given = self.risks if risks is None else risks
        if not len(self.events):
            return torch.full_like(given[..., 0], float("nan"))
        top = given.detach().amax(-1, keepdim=True)
        sums = ((given - top).exp() @ self.weights).clamp(min=1e-30).log() + top
        return 1 + (sums - given[..., self.events]).mean(-1) - self.equal

    def loss(self, risk: Tensor, bags: Tensor, run: int | None) -> Tensor:
        """The value [*batch], with the gradient of this bag's risk times the number of bags: a mean over bags, one a
        step, then has the gradient of the whole.
        """
        kept = self.risks if run is None else self.risks[run]
        others = kept.scatter(-1, bags.unsqueeze(-1), risk.detach().to(kept).unsqueeze(-1))
        place = torch.zeros_like(kept).scatter(-1, bags.unsqueeze(-1), 1.0)
        value = self.value(others + place * (risk - risk.detach()).to(kept).unsqueeze(-1))
        return value.detach() + kept.shape[-1] * (value - value.detach())

    def note(self, risk: Tensor, bags: Tensor, run: int | None) -> None:
        """Keep what was said of a bag last."""
        kept = self.risks if run is None else self.risks[run]
        kept.scatter_(-1, bags.unsqueeze(-1), risk.detach().to(kept).unsqueeze(-1))

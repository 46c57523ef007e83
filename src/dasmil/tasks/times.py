"""A time until an event, seen or censored: hazards of bins of time, or Cox's partial likelihood."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor
from torch.nn import functional as F

from dasmil.errors import DataError, named
from dasmil.stats.brier import brier_at, default_grid, integrated, kaplan_meier_brier
from dasmil.stats.chance import c_index_to_tell
from dasmil.stats.concordance import auroc_at, harrell, uno
from dasmil.stats.follow_up import FollowUp, kaplan_meier
from dasmil.tasks.cox import RiskSet
from dasmil.tasks.target import Array, Detectable, EpochLoss, Oddity, Said, Target, TargetLoss
from dasmil.vocabulary import Meaning

Method = Literal["hazards", "cox"]
BINS = 4
FEWEST_EVENTS = 2
FEW_EVENTS = 10
MOST_BINS = 1000


@dataclass(frozen=True)
class TimeTarget(Target):
    """A time until an event that was seen (1) or not (0, censored), in the columns ``time`` and ``event``.

    method "hazards": the time line in bins, one output each, the logit of the probability that the event falls into the
    bin for those who reach it; "cox": one output, the log of the risk relative to others. edges: where bins end, from
    the quantiles of event times of the training bags, the last at the latest time seen, with all later times in it.
    times: at which figures are given; without them, the ends of bins but the last.
    """

    time: str = "time"
    event: str = "event"
    unit: str = ""
    method: Method = "hazards"
    bins: int = BINS
    times: tuple[float, ...] = ()
    edges: tuple[float, ...] = ()
    kind: ClassVar[str] = "time"
    task: ClassVar[str] = "survival"
    main: ClassVar[str] = "c_index"
    metrics: ClassVar[tuple[str, ...]] = ("c_index",)
    headlines: ClassVar[tuple[str, ...]] = ("c_index", "uno")
    of_several: ClassVar[bool] = False

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.time

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.time, self.event)

    @property
    def outputs(self) -> int:
        return 1 if self.method == "cox" else len(self.edges) or self.bins

    @property
    def text(self) -> str:
        how = "hazards of bins of time" if self.method == "hazards" else "Cox's partial likelihood"
        unit = f" in {self.unit}" if self.unit else ""
        return f"by {how}; time {self.time!r}{unit}, event {self.event!r}"

    def fitted(self, values: Array) -> TimeTarget:
        if not np.isfinite(values).all() or (values[:, 0] < 0).any():
            raise DataError(
                f"{int((~np.isfinite(values)).any(1).sum())} training bags lack {self.time!r} or {self.event!r}, or "
                "have a negative time: survival needs a time from 0 on and an event of 0 or 1 for each"
            )
        if not np.isin(values[:, 1], (0, 1)).all():
            raise DataError(f"{self.event!r} holds other values than 0 and 1: 1 = the event was seen, 0 = censored")
        times = values[values[:, 1] == 1, 0]
        if len(times) < FEWEST_EVENTS:
            raise DataError(
                f"{len(times)} of {len(values)} training bags have the event ({self.event!r} = 1): nothing about "
                f"times can be learned from fewer than {FEWEST_EVENTS}; check the column, or gather longer"
            )
        inner = np.quantile(times, np.arange(1, self.bins) / self.bins)
        last = float(values[:, 0].max())
        return replace(self, edges=(*(float(e) for e in np.unique(inner) if 0 < e < last), last))

    def loss_of(self, values: Array, *, balance: bool) -> TargetLoss:
        return CoxLoss() if self.method == "cox" else HazardLoss(self, values)

    def strata(self, values: Array) -> NDArray[np.int64]:
        """With the event or not."""
        return np.nan_to_num(values[:, 1]).astype(np.int64)

    @property
    def strata_names(self) -> tuple[str, ...]:
        return ("censored", "event")

    @property
    def strata_title(self) -> str:
        return "Event"

    @property
    def valid(self) -> bool:
        return 1 <= self.bins <= MOST_BINS >= len(self.edges) and _rises(self.edges) and _rises(self.times)

    def example(self, number: int) -> dict[str, float | None]:
        return {self.time: 1.0 + number, self.event: 1.0}

    def _describe_known(self, known: Array) -> str:
        follow = FollowUp(known[:, 0], known[:, 1] == 1)
        unit = f" {self.unit}" if self.unit else ""
        events = int(follow.events.sum())
        middle, watched = kaplan_meier(follow).median, kaplan_meier(FollowUp(follow.times, ~follow.events)).median
        line = f"Events: {events} of {len(known)} patients ({events / len(known):.0%}), {len(known) - events} censored"
        line += f"; times from {follow.times.min():g} to {follow.times.max():g}{unit}; "
        line += f"half have had the event by {middle:g}" if np.isfinite(middle) else "fewer than half have the event"
        return line + (f"; half were watched for {watched:g}" if np.isfinite(watched) else "")

    def detectable(self, sets: Sequence[Array]) -> Detectable:
        follows = [FollowUp(rows[:, 0], rows[:, 1] == 1) for rows in sets if len(rows)]
        return Detectable("C-index", sum(int(one.events.sum()) for one in follows), *c_index_to_tell(follows))

    def oddities(self, values: Array, slides: Sequence[str]) -> Iterator[Oddity]:
        events = int((values[:, 1] == 1).sum())
        if events < FEW_EVENTS:
            yield Oddity("few events", f"{events} patients have the event: next to nothing can be told")
        zero = tuple(name for name, time in zip(slides, values[:, 0], strict=True) if time == 0)
        if zero:
            yield Oddity(
                "time 0", f"{len(zero)} slides have a time of 0 and say nothing of an order: {named(zero)}", zero
            )
        yield from super().oddities(values, slides)

    def survival(self, outputs: Array) -> Array:
        """The probability to live on past the end of every bin [..., bins], from the logits of hazards."""
        return np.cumprod(expit(-outputs), axis=-1)

    def risk(self, outputs: Array) -> Array:
        """One number a bag, larger for earlier events: the log-risk (cox), or the mean over the ends of the bins of
        the probability that the event has come (hazards).
        """
        return outputs[..., 0] if self.method == "cox" else 1 - self.survival(outputs).mean(-1)

    def said(self, outputs: Array) -> Said:
        """The risk, and with hazards the probability to live past every edge."""
        found = {"risk": self.risk(outputs)}
        if self.method == "hazards":
            past = self.survival(outputs)
            found |= {f"survival_{edge:g}": past[..., k] for k, edge in enumerate(self.edges)}
        return found

    def shared(self, said: Said) -> Said:
        """Survival at the times of figures: every fold has its own bins."""
        if self.method == "cox":
            return said
        past = self.survival_at(said, np.array(self.horizons))
        return {"risk": said["risk"], **{f"survival_{t:g}": past[:, k] for k, t in enumerate(self.horizons)}}

    def answer(self, outputs: Array) -> Array:
        return self.risk(outputs)

    def order(self, outputs: Array) -> Array:
        return -self.risk(outputs)

    def concordance(self, values: Array, outputs: Array) -> float:
        return float(harrell(FollowUp(values[:, 0], values[:, 1] == 1), self.risk(outputs))[0])

    @property
    def horizons(self) -> tuple[float, ...]:
        """The times at which figures are given."""
        return self.times or self.edges[:-1]

    def figures(self, values: Array, said: Said, weights: Array, reference: Array | None = None) -> dict[str, Array]:
        """C-index of Harrell and of Uno, AUROC at the ends of bins; with hazards the Brier score over time, and that of
        the Kaplan-Meier curve of ``reference`` (the training bags).
        """
        follow = FollowUp(values[:, 0], values[:, 1] == 1)
        known = follow if reference is None else FollowUp(reference[:, 0], reference[:, 1] == 1)
        found = {
            "c_index": harrell(follow, said["risk"], weights),
            "uno": uno(follow, said["risk"], weights, reference=known),
        }
        for t in self.horizons:
            gone = 1 - self.survival_at(said, np.array([t]))[:, 0] if self.method == "hazards" else said["risk"]
            found[f"auroc_{t:g}"] = auroc_at(follow, gone, t, weights, reference=known)
        if self.method == "hazards":
            grid = default_grid(known)
            own = self.survival_at(said, grid)
            found["brier"] = integrated(brier_at(follow, own, grid, weights, reference=known), grid)
            found["brier_km"] = integrated(kaplan_meier_brier(follow, grid, weights, reference=known), grid)
        return found

    def quick(self, values: Array, outputs: Array, name: str) -> float:
        if name == "c_index":
            return self.concordance(values, outputs)
        return super().quick(values, outputs, name)

    def patients(self, values: Array, owners: Sequence[str]) -> tuple[int, NDArray[np.int64] | None]:
        seen = np.isfinite(values).all(1) & (values[:, 1] == 1)
        return len(set(np.array(owners)[seen])), None

    def describe(self, values: Array) -> dict[str, Any]:
        return {"events": int((values[:, 1] == 1).sum()), **super().describe(values)}

    def known_text(self, values: Array) -> str:
        if not np.isfinite(values).all():
            return ""
        return f"{values[0]:.4g}{'' if values[1] == 1 else '+'} {self.unit}".strip()

    def meaning(self, output: int) -> Meaning:
        if self.method == "cox":
            return Meaning("the log-risk", "raises the risk", "lowers the risk")
        begin, end = (0.0, *self.edges)[output], self.edges[output]
        when = f"from {begin:.4g} to {end:.4g}" + (f" {self.unit}" if self.unit else "")
        sure = f"the event {when}, for those who come so far"
        return Meaning(f"the logit of the hazard {when}", "raises the risk", "lowers the risk", probability=sure)

    def output_names(self) -> list[str]:
        if self.outputs == 1:
            return ["lower risk", "higher risk"]
        return [f"event in bin {k + 1} of {self.outputs}" for k in range(self.outputs)]

    def survival_at(self, said: Said, times: Array) -> Array:
        """Survival at any time [n, times] from that at the ends of bins; within a bin the hazard is even."""
        past = np.stack([said[f"survival_{edge:g}"] for edge in self.edges], axis=1)
        knots = np.concatenate([[0.0], self.edges])
        logs = np.log(np.clip(np.concatenate([np.ones((len(past), 1)), past], axis=1), 1e-12, 1))
        return np.stack([np.exp(np.interp(times, knots, row)) for row in logs])


def _rises(numbers: Sequence[float]) -> bool:
    """Whether numbers are finite, above 0 (a last follow-up may be at 0) and in their order."""
    return all(isfinite(n) and n >= 0 for n in numbers) and all(a < b for a, b in pairwise(numbers))


class HazardLoss(TargetLoss):
    """Likelihood of censored times in bins: -log of the hazard of the event's bin, -log (1 - hazard) of bins survived.

    Outputs are the logits of the hazard of each bin. Gensheimer and Narasimhan 2019, PeerJ 7:e6257.
    """

    def __init__(self, target: TimeTarget, values: Array) -> None:
        ends = torch.tensor(target.edges, dtype=torch.float64)
        self.ends, self.starts = ends, torch.cat([ends.new_zeros(1), ends[:-1]])
        lived, seen = self.coded(torch.from_numpy(values))
        died, risk = seen.sum(0), (lived + seen).sum(0)
        hazard = (died / risk.clamp(min=1)).clamp(1e-6, 1 - 1e-6)
        self.guess = float(-(seen * hazard.log() + lived * (1 - hazard).log()).sum(-1).mean())
        self.start = torch.logit(hazard).float()

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


class CoxLoss(TargetLoss):
    """Cox's partial likelihood, which belongs to a set of bags: a step sees one bag, and the last risks of all others.

    Its value is 1 plus what it lies above that of equal risks, per event: 1 is a constant guess in sets of any size.
    """

    guess = 1.0

    def each(self, outputs: Tensor, values: Tensor) -> Tensor:
        raise NotImplementedError("the partial likelihood of a single bag does not exist")

    def of_epoch(self, values: Tensor, outputs: Callable[[], Tensor]) -> EpochLoss:
        return _CoxEpoch(self, values, RiskSet(values, outputs()[..., 0]))

    def mean(self, outputs: Tensor, values: Tensor) -> float:
        return float(RiskSet(values, outputs[None, :, 0]).value()[0])


class _CoxEpoch(EpochLoss):
    def __init__(self, loss: CoxLoss, values: Tensor, risks: RiskSet) -> None:
        super().__init__(loss, values)
        self.risks = risks

    def __call__(self, outputs: Tensor, bags: Tensor, run: int | None) -> Tensor:
        return self.risks.loss(outputs[..., 0], bags, run)

    def note(self, outputs: Tensor, bags: Tensor, run: int | None) -> None:
        self.risks.note(outputs[..., 0], bags, run)

"""What one target of a bag is: classes, a number, or a time until an event; how an output says it, and how well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from dasmil.errors import DataError
from dasmil.stats.brier import brier_at, default_grid, integrated, kaplan_meier_brier
from dasmil.stats.concordance import auroc_at, harrell, uno
from dasmil.stats.follow_up import FollowUp
from dasmil.stats.numeric import NUMERIC_METRICS, numeric_scores
from dasmil.stats.ranking import auroc, divide
from dasmil.vocabulary import Meaning

Array = NDArray[np.float64]
Said = Mapping[str, Array]
"""What a target's outputs mean, by name: arrays with a value per bag."""
Method = Literal["hazards", "cox"]
NumberLoss = Literal["huber", "squared"]

BINS = 4
FEWEST_EVENTS = 2


def ordered(values: Array, said: Array) -> float:
    """Of all pairs with different values, the share in which the larger has the larger output; NaN without pairs."""
    if not len(values):
        return float("nan")
    return float(harrell(FollowUp(values.max() - values, np.ones(len(values), dtype=bool)), said)[0])


@dataclass(frozen=True)
class ClassTarget:
    """One of several classes, numbered 0, 1, ... in a column; two classes have one output, more one each."""

    name: str
    classes: tuple[str, ...] = ("0", "1")
    kind: ClassVar[str] = "classes"
    main: ClassVar[str] = "auroc"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def outputs(self) -> int:
        return 1 if len(self.classes) == 2 else len(self.classes)

    def fitted(self, values: Array) -> ClassTarget:
        known = values[np.isfinite(values[:, 0]), 0]
        if (known < 0).any() or (known != known.round()).any() or (known >= len(self.classes)).any():
            raise DataError(
                f"target {self.name!r} holds {known.max():g}, expected a class 0 to {len(self.classes) - 1}"
            )
        missing = set(range(len(self.classes))) - set(known.astype(int).tolist())
        if missing:
            raise DataError(
                f"no training bag has class {self.classes[min(missing)]!r} of the target {self.name!r}: every class "
                "needs some, or leave the target out"
            )
        return self

    def strata(self, values: Array) -> NDArray[np.int64]:
        """The class; bags without one go with the commonest, so that splits need not share out a few of them."""
        known = np.isfinite(values[:, 0])
        common = int(np.bincount(values[known, 0].astype(np.int64)).argmax()) if known.any() else 0
        return np.where(known, np.nan_to_num(values[:, 0]), common).astype(np.int64)

    def said(self, outputs: Array) -> dict[str, Array]:
        """The probability of class 1 (or of every class) and the likelier class, from outputs [..., outputs]."""
        if self.outputs == 1:
            found = {f"{self.name}_probability": expit(outputs[..., 0])}
        else:
            every = softmax(outputs, axis=-1)
            found = {f"{self.name}_probability_{c}": every[..., k] for k, c in enumerate(self.classes)}
        return {**found, self.name: self.decided(found)}

    def decided(self, said: Said) -> Array:
        """The number of the likelier class."""
        if self.outputs == 1:
            return (said[f"{self.name}_probability"] >= 0.5).astype(np.float64)
        every = np.stack([said[f"{self.name}_probability_{c}"] for c in self.classes], axis=-1)
        return every.argmax(-1).astype(np.float64)

    def rank(self, outputs: Array) -> Array:
        """One number a bag [n] that is larger for higher classes."""
        return outputs[..., 0] if self.outputs == 1 else softmax(outputs, axis=-1) @ np.arange(len(self.classes))

    def concordance(self, values: Array, outputs: Array) -> float:
        """How often of two bags with different values the larger one has the larger output; 0.5 is chance."""
        known = np.isfinite(values[:, 0])
        return ordered(values[known, 0], self.rank(outputs[known]))

    def figures(self, values: Array, said: Said, weights: Array, reference: Array | None = None) -> dict[str, Array]:
        """Every metric under each row of the weights [draws, n], from what ``said`` gave: arrays [draws]."""
        known = np.isfinite(values[:, 0])
        if not known.any():
            return dict.fromkeys(("auroc", "balanced_accuracy"), np.full(len(weights), np.nan))
        y, w = values[known, 0].astype(np.int64), weights[:, known]
        names = [name for name in said if name != self.name]
        p = np.stack([said[name][known] for name in names], axis=1)
        every = np.concatenate([1 - p, p], axis=1) if self.outputs == 1 else p
        classes = range(1, 2) if self.outputs == 1 else range(len(self.classes))
        told = every.argmax(1) if self.outputs > 1 else (p[:, 0] >= 0.5).astype(np.int64)
        hits = [divide(w @ ((y == c) & (told == c)), w @ (y == c).astype(np.float64)) for c in range(len(self.classes))]
        return {
            "auroc": np.mean([auroc(every[:, c], y == c, w) for c in classes], axis=0),
            "balanced_accuracy": np.mean(hits, axis=0),
        }

    def known_text(self, values: Array) -> str:
        return f"{self.name} {self.classes[int(values[0])]}" if np.isfinite(values[0]) else ""

    def meaning(self, output: int) -> Meaning:
        called = self.classes[1 if self.outputs == 1 else output]
        sure = f"{self.name} = {called}" if self.outputs == 1 else ""
        return Meaning(
            f"the logit of {self.name} = {called}", f"speaks for {called}", f"speaks against {called}", probability=sure
        )

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self), "classes": list(self.classes)}


@dataclass(frozen=True)
class NumberTarget:
    """A number; the model says it in standard deviations about the mean of the training bags.

    mean, sd: of the training bags (None before they are known); loss: "huber" (errors beyond one standard deviation
    count linearly) or "squared"; unit: as the user calls it.
    """

    name: str
    unit: str = ""
    loss: NumberLoss = "huber"
    mean: float | None = None
    sd: float | None = None
    kind: ClassVar[str] = "number"
    main: ClassVar[str] = "r2"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    outputs: ClassVar[int] = 1

    def fitted(self, values: Array) -> NumberTarget:
        known = values[np.isfinite(values[:, 0]), 0]
        if not len(known):
            raise DataError(f"no training bag has a value of the target {self.name!r}: fill in the column")
        if known.std() == 0:
            raise DataError(
                f"the target {self.name!r} is {known[0]:g} in all {len(known)} training bags: a constant cannot be "
                "learned; give another column"
            )
        return replace(self, mean=float(known.mean()), sd=float(known.std()))

    def standardised(self, values: Array) -> Array:
        assert self.mean is not None
        assert self.sd is not None
        return (values - self.mean) / self.sd

    def strata(self, values: Array) -> NDArray[np.int64]:
        """Above the median or not: what splits are balanced by."""
        known = np.isfinite(values[:, 0])
        middle = np.median(values[known, 0]) if known.any() else 0.0
        return (known & (values[:, 0] > middle)).astype(np.int64)

    def said(self, outputs: Array) -> dict[str, Array]:
        """The number in its own unit."""
        assert self.mean is not None
        assert self.sd is not None
        return {self.name: self.mean + self.sd * outputs[..., 0]}

    def rank(self, outputs: Array) -> Array:
        return outputs[..., 0]

    def concordance(self, values: Array, outputs: Array) -> float:
        known = np.isfinite(values[:, 0])
        return ordered(values[known, 0], outputs[known, 0])

    def figures(self, values: Array, said: Said, weights: Array, reference: Array | None = None) -> dict[str, Array]:
        known = np.isfinite(values[:, 0])
        if not known.any():
            return dict.fromkeys(NUMERIC_METRICS, np.full(len(weights), np.nan))
        return numeric_scores(values[known, 0], said[self.name][known], weights[:, known])

    def known_text(self, values: Array) -> str:
        return f"{self.name} {values[0]:g} {self.unit}".strip() if np.isfinite(values[0]) else ""

    def meaning(self, output: int) -> Meaning:
        """The number in its own unit."""
        assert self.mean is not None
        assert self.sd is not None
        return Meaning(
            self.name, f"raises {self.name}", f"lowers {self.name}", self.unit, scale=self.sd, shift=self.mean
        )

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class TimeTarget:
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
    main: ClassVar[str] = "c_index"

    @property
    def name(self) -> str:
        return self.time

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.time, self.event)

    @property
    def outputs(self) -> int:
        return 1 if self.method == "cox" else len(self.edges) or self.bins

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

    def strata(self, values: Array) -> NDArray[np.int64]:
        return np.nan_to_num(values[:, 1]).astype(np.int64)

    def survival(self, outputs: Array) -> Array:
        """The probability to live on past the end of every bin [..., bins], from the logits of hazards."""
        return np.cumprod(expit(-outputs), axis=-1)

    def risk(self, outputs: Array) -> Array:
        """One number a bag, larger for earlier events: the log-risk (cox), or the mean over the ends of the bins of
        the probability that the event has come (hazards).
        """
        return outputs[..., 0] if self.method == "cox" else 1 - self.survival(outputs).mean(-1)

    def said(self, outputs: Array) -> dict[str, Array]:
        """The risk, and with hazards the probability to live past every edge."""
        found = {"risk": self.risk(outputs)}
        if self.method == "hazards":
            past = self.survival(outputs)
            found |= {f"survival_{edge:g}": past[..., k] for k, edge in enumerate(self.edges)}
        return found

    def rank(self, outputs: Array) -> Array:
        return self.risk(outputs)

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

    def survival_at(self, said: Said, times: Array) -> Array:
        """Survival at any time [n, times] from that at the ends of bins; within a bin the hazard is even."""
        past = np.stack([said[f"survival_{edge:g}"] for edge in self.edges], axis=1)
        knots = np.concatenate([[0.0], self.edges])
        logs = np.log(np.clip(np.concatenate([np.ones((len(past), 1)), past], axis=1), 1e-12, 1))
        return np.stack([np.exp(np.interp(times, knots, row)) for row in logs])

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self), "times": list(self.times), "edges": list(self.edges)}


Target = ClassTarget | NumberTarget | TimeTarget

"""Ordered grades: an output for every cut between two grades, the logit of the probability to lie above it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor
from torch.nn import functional as F

from dasmil.stats.agreement import kappa
from dasmil.stats.ranking import auroc, divide
from dasmil.stats.small import class_patients
from dasmil.tasks.classes import need_every_class
from dasmil.tasks.target import Array, LabelColumn, Said, Target, TargetLoss, concordance
from dasmil.vocabulary import ABOVE, Meaning


@dataclass(frozen=True)
class GradeTarget(Target):
    """One of several grades in their order, numbered 0, 1, ... from the lowest.

    Output k is the cumulative logit of cut k, log P(above grade k) / P(at or below it). The probabilities of the cuts
    are put into falling order, which never moves them away from the true ones (Chernozhukov et al. 2010, Econometrica
    78:1093). The grade that is predicted is their median; its expectation orders bags.
    """

    name: str
    classes: tuple[str, ...] = ("0", "1", "2")
    kind: ClassVar[str] = "ordinal"
    task: ClassVar[str] = "ordinal"
    main: ClassVar[str] = "kappa"
    metrics: ClassVar[tuple[str, ...]] = ("kappa", "grade_error", "concordance")
    headlines: ClassVar[tuple[str, ...]] = ("kappa", "grade_error")
    exact: ClassVar[bool] = True
    curvature: ClassVar[float] = 0.25

    @classmethod
    def of_column(cls, column: LabelColumn) -> GradeTarget:
        return cls(column.name, column.names())

    @property
    def valid(self) -> bool:
        return 2 <= len(set(self.classes)) == len(self.classes)

    @property
    def outputs(self) -> int:
        return len(self.classes) - 1

    @property
    def text(self) -> str:
        return f"{self.name!r} ({' < '.join(self.classes)})"

    def fitted(self, values: Array) -> GradeTarget:
        need_every_class(self.name, self.classes, values)
        return self

    def loss_of(self, values: Array, *, balance: bool) -> GradeLoss:
        return GradeLoss(self, values)

    @property
    def link(self) -> Array:
        """One predictor moves the logits of all cuts alike: proportional odds."""
        return np.ones((1, self.outputs))

    def above(self, values: Array) -> NDArray[np.bool_]:
        """Whether values [..., 1] lie above each cut [..., cuts]."""
        return np.asarray(values > np.arange(self.outputs), dtype=np.bool_)

    def said(self, outputs: Array) -> Said:
        """The expected grade (0 is the lowest), the probability to lie above every grade but the last, the grade."""
        falling = -np.sort(-expit(outputs), axis=-1)
        above = {f"{self.name}_above_{name}": falling[..., k] for k, name in enumerate(self.classes[:-1])}
        return self.mean_of({f"{self.name}_expected": falling.sum(-1), **above})

    def mean_of(self, said: Said) -> Said:
        """The grade is that of the mean probabilities."""
        return {**said, self.name: (self.probabilities(said) >= 0.5).sum(-1).astype(np.float64)}

    def probabilities(self, said: Said) -> Array:
        """To lie above every cut [n, cuts]."""
        return np.stack([said[f"{self.name}_above_{name}"] for name in self.classes[:-1]], axis=-1)

    def order(self, outputs: Array) -> Array:
        return expit(outputs).sum(-1)

    def figures(self, values: Array, said: Said, weights: Array, reference: Array | None = None) -> dict[str, Array]:
        """Those of the grade, and the AUROC of every cut."""
        known = np.isfinite(values[:, 0])
        above, told = self.above(values[known]), self.probabilities(said)[known]
        names = [f"{ABOVE}{name}" for name in self.classes[:-1]]
        cuts = {name: auroc(told[:, k], above[:, k], weights[:, known]) for k, name in enumerate(names)}
        return {**self.figures_of_several(values, said, weights), **cuts}

    def figures_of_several(self, values: Array, said: Said, weights: Array) -> dict[str, Array]:
        known = np.isfinite(values[:, 0])
        if not known.any():
            return dict.fromkeys(self.metrics, np.full(len(weights), np.nan))
        y, p, w = values[known, 0], said[self.name][known], weights[:, known]
        return {
            "kappa": kappa(y, p, len(self.classes), w),
            "grade_error": divide(w @ np.abs(y - p), w.sum(1)),
            "concordance": concordance(y, said[f"{self.name}_expected"][known], w),
        }

    def patients(self, values: Array, owners: Sequence[str]) -> tuple[int, NDArray[np.int64] | None]:
        """Those outside the commonest grade."""
        counts = self._patients(values, owners)
        return int(counts.sum() - counts.max()), None

    def patients_of_metrics(self, values: Array, owners: Sequence[str]) -> Mapping[str, int]:
        """On the smaller side of every cut."""
        below = np.cumsum(self._patients(values, owners))
        return {f"{ABOVE}{n}": int(min(below[k], below[-1] - below[k])) for k, n in enumerate(self.classes[:-1])}

    def _patients(self, values: Array, owners: Sequence[str]) -> NDArray[np.int64]:
        known = np.isfinite(values[:, 0])
        return class_patients(values[known, 0].astype(np.int64), np.array(owners)[known].tolist(), len(self.classes))

    def describe(self, values: Array) -> dict[str, Any]:
        counts = {name: int((values[:, 0] == k).sum()) for k, name in enumerate(self.classes)}
        return {"grades": counts, **super().describe(values)}

    def known_text(self, values: Array) -> str:
        return f"{self.name} {self.classes[int(values[0])]}" if np.isfinite(values[0]) else ""

    def meaning(self, output: int) -> Meaning:
        above = f"{self.name} above {self.classes[output]}"
        return Meaning(f"the logit of {above}", f"raises {self.name}", f"lowers {self.name}", probability=above)

    def output_names(self) -> list[str]:
        if self.outputs == 1:
            return [f"lower {self.name}", f"higher {self.name}"]
        return [f"{self.name} above {name}" for name in self.classes[:-1]]


class GradeLoss(TargetLoss):
    """Mean over the cuts of the cross entropy of lying above. Grades are not weighed: probabilities stay calibrated."""

    def __init__(self, target: GradeTarget, values: Array) -> None:
        self.cuts = torch.arange(target.outputs)
        share = target.above(values[np.isfinite(values[:, 0])]).mean(0).clip(1e-6, 1 - 1e-6)
        self.guess = float(-(share * np.log(share) + (1 - share) * np.log1p(-share)).mean())
        self.start = torch.from_numpy(np.log(share / (1 - share))).float()

    def each(self, outputs: Tensor, values: Tensor) -> Tensor:
        logit = outputs if outputs.dtype == torch.float64 else outputs.float()
        above = (values[..., :1] > self.cuts.to(values.device)).to(logit)
        return F.binary_cross_entropy_with_logits(logit, above, reduction="none").mean(-1)

"""Do scores name the instances that the model needs? They are removed in order, and the model is asked again each time.

Flipping curves as of Samek et al. (2017) and, for bags, Hense et al. (2024, xMIL): a score is faithful where removing
its highest instances first lowers the logit faster than removing instances at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from dasmil.attribution.what_if import logit_of_part
from dasmil.stats import mean_over_patients

if TYPE_CHECKING:
    from dasmil.models.base import MILModel
    from dasmil.types import Bag, Explanation

Array = NDArray[np.float64]
REMOVED = tuple(k / 20 for k in range(20))
"""Shares of the instances that are removed; of small bags at least one instance stays."""
DEALS = 3
"""Random orders whose mean stands for chance."""
HIGHEST, LOWEST, ATTENTION, RANDOM = "highest first", "lowest first", "attention", "random"
RESAMPLES = 2000


@dataclass(frozen=True, eq=False)
class FlippingCurves:
    """Of one bag: by order of removal, the change of the target's logit at every share of REMOVED."""

    bag_id: str
    patient: str
    instances: int
    target: int
    logit: float
    changes: dict[str, Array]

    def gap(self, order: str) -> float:
        """By how much more than random removal this order lowers the logit, mean over the shares removed."""
        return float((self.changes[RANDOM] - self.changes[order]).mean())


@dataclass(frozen=True)
class Faithfulness:
    """Of a cohort: the mean gap of an order to random removal, and its 95 % interval over patients."""

    order: str
    gap: float
    low: float
    high: float
    bags: int


def flipping_curves(model: MILModel, bag: Bag, explanation: Explanation, seed: int = 0) -> FlippingCurves:
    """Remove instances by contribution (highest first, lowest first), by attention where it is known, and at random."""
    values = {HIGHEST: explanation.contributions, LOWEST: -explanation.contributions}
    if "attention" in explanation.scores:
        values[ATTENTION] = explanation.scores["attention"]
    orders = {name: [np.argsort(-v.detach().double().cpu().numpy(), kind="stable")] for name, v in values.items()}
    generator = np.random.default_rng(seed)
    orders[RANDOM] = [generator.permutation(len(bag)) for _ in range(DEALS)]
    changes = {
        name: np.mean([_curve(model, bag, order, explanation.target) for order in deals], axis=0)
        for name, deals in orders.items()
    }
    patient = bag.patient_id or bag.bag_id
    return FlippingCurves(bag.bag_id, patient, len(bag), explanation.target, explanation.logit, changes)


def _curve(model: MILModel, bag: Bag, order: NDArray[np.int64], target: int) -> Array:
    """The logit minus that of the whole bag, with the first instances of the order removed."""
    logits: dict[int, float] = {}
    counts = [min(int(share * len(bag)), len(bag) - 1) for share in REMOVED]
    for count in counts:
        if count not in logits:
            keep = torch.ones(len(bag), dtype=torch.bool)
            keep[torch.from_numpy(order[:count].copy())] = False
            logits[count] = logit_of_part(model, bag, keep, target)
    return np.array([logits[count] - logits[0] for count in counts])


def summarise(curves: Sequence[FlippingCurves]) -> list[Faithfulness]:
    """The mean gap of every order that all bags have; patients are resampled. Of the lowest first it should be
    negative: what is left speaks for the class.
    """
    patients = [one.patient for one in curves]
    orders = [name for name in curves[0].changes if name != RANDOM and all(name in one.changes for one in curves)]
    found = []
    for name in orders:
        gaps = np.array([one.gap(name) for one in curves])
        low, high = mean_over_patients(gaps, patients, RESAMPLES) if len(set(patients)) > 1 else (np.nan, np.nan)
        found.append(Faithfulness(name, float(gaps.mean()), float(low), float(high), len(curves)))
    return found

"""What simple rules are asked to tell of bags: one of two classes, a time until an event, or a number.

A rule says one number a bag, ``said``: a logit, a log-risk, or standard deviations about the mean; 0 is a constant
guess. All that differs between the three is what a constant guess leaves unexplained of a bag (``residuals``), how a
regression is fitted, and what a bag's loss is.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from dasmil.stats import FollowUp, auroc, harrell

Array = NDArray[np.float64]
Fold = tuple[NDArray[np.int64], NDArray[np.int64]]
FOLDS = 5
STRONGEST = 10.0
"""The largest log-risk that a loss is told of: beyond it the exponential says nothing."""


class Question(ABC):
    """What is asked of some bags; ``residuals`` [bags] sum to 0 and are larger where ``said`` should be."""

    residuals: Array
    strata: NDArray[np.int64]
    floor: ClassVar[float] = 0.0
    """The loss, as a share of a constant guess, of the best that can be hoped for."""

    @abstractmethod
    def part(self, chosen: NDArray[np.int64]) -> Self:
        """The same of some of the bags."""

    @abstractmethod
    def fitted(self, x: Array, strength: float = 1.0) -> tuple[Array, float]:
        """Weights [p] and constant of a regression on x [bags, p]; strength: the inverse of its ridge."""

    @abstractmethod
    def losses(self, said: Array) -> Array:
        """The loss of every bag [bags] as a share of a constant guess."""

    @abstractmethod
    def concordance(self, said: Array) -> float:
        """How often of two bags the right one has the larger number; 0.5 is chance."""

    @property
    @abstractmethod
    def rarest(self) -> int:
        """Bags of the kind that is rarest, of which every fold needs one."""

    def scores(self, columns: Array) -> Array:
        """How well each column [bags, m] orders the bags: 0.5 is chance, 1 as the residuals do, 0 the other way round.

        Of two classes it is the AUROC.
        """
        best = np.sort(self.residuals) @ np.arange(1, len(columns) + 1)
        return 0.5 + 0.5 * (self.residuals @ rankdata(columns, axis=0)) / max(best, 1e-12)

    def chance(self, said: Array, tried: int) -> float:
        """How often the best of so many blind guesses would order the bags so well, at most.

        The sum of residuals times ranks taken as normal; of two classes that is the test of Mann and Whitney.
        """
        n = len(said)
        spread = math.sqrt(float(self.residuals @ self.residuals) * n * (n + 1) / 12)
        found = float(self.residuals @ rankdata(said))
        return float(min(1.0, tried * norm.sf(found / max(spread, 1e-12))))

    def folds(self, patients: Sequence[str]) -> list[Fold]:
        """Rows to learn from and rows to tell, by patient; none where the bags are too few."""
        from sklearn.model_selection import StratifiedGroupKFold

        count = min(FOLDS, self.rarest, len(set(patients)))
        if count < 2:
            return []
        splitter = StratifiedGroupKFold(count, shuffle=True, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fewer censored bags than folds
            return list(splitter.split(np.zeros(len(self.strata)), self.strata, patients))


class Classes(Question):
    """Class 1 or another, each with half of the weight."""

    def __init__(self, labels: NDArray[np.int64]) -> None:
        self.labels = np.asarray(labels)
        self.positive = self.labels == 1
        counts = np.maximum(1, [(~self.positive).sum(), self.positive.sum()])
        self.weights = len(self.labels) / (2 * np.where(self.positive, counts[1], counts[0]))
        self.residuals = np.where(self.positive, 1 / counts[1], -1 / counts[0])
        self.strata = self.labels

    def part(self, chosen: NDArray[np.int64]) -> Classes:
        return Classes(self.labels[chosen])

    @property
    def rarest(self) -> int:
        return int(min(self.positive.sum(), (~self.positive).sum()))

    def fitted(self, x: Array, strength: float = 1.0) -> tuple[Array, float]:
        from sklearn.linear_model import LogisticRegression

        found = LogisticRegression(C=strength, class_weight="balanced", max_iter=500).fit(x, self.positive)
        return found.coef_[0].astype(np.float64), float(found.intercept_[0])

    def losses(self, said: Array) -> Array:
        return self.weights * np.logaddexp(0, np.where(self.positive, -said, said)) / math.log(2)

    def concordance(self, said: Array) -> float:
        return float(auroc(said, self.positive)[0])


class Times(Question):
    """Times until an event. What was to be expected of a bag is the Nelson-Aalen hazard summed up to its time.

    With that as exposure, events are Poisson numbers whose log-mean a rule shifts (proportional hazards with the
    baseline of all bags), and every bag has a loss of its own. Large effects come out somewhat too small so.
    """

    floor: ClassVar[float] = 0.6  # of a hazard that is some thirty times as high in half of the bags

    def __init__(self, times: Array, events: NDArray[np.bool_]) -> None:
        self.follow = FollowUp(times, events)
        self.strata = self.follow.strata
        self.expected = cumulative_hazard(self.follow)
        self.residuals = self.follow.events - self.expected

    def part(self, chosen: NDArray[np.int64]) -> Times:
        return Times(self.follow.times[chosen], self.follow.events[chosen])

    @property
    def rarest(self) -> int:
        return int(self.follow.events.sum())

    def fitted(self, x: Array, strength: float = 1.0) -> tuple[Array, float]:
        from sklearn.linear_model import PoissonRegressor

        seen = self.expected > 0
        events = float(self.follow.events.sum())
        if events == 0:
            return np.zeros(x.shape[1]), 0.0
        rate = self.follow.events[seen] / self.expected[seen]
        ridge = PoissonRegressor(alpha=1 / (strength * events), max_iter=500, tol=1e-6)
        found = ridge.fit(x[seen], rate, sample_weight=self.expected[seen])
        return np.asarray(found.coef_, dtype=np.float64), float(found.intercept_)

    def losses(self, said: Array) -> Array:
        risk = np.clip(said, -STRONGEST, STRONGEST)
        share = len(risk) / max(1, self.follow.events.sum())
        return 1 + share * (self.expected * np.expm1(risk) - self.follow.events * risk)

    def concordance(self, said: Array) -> float:
        return float(harrell(self.follow, said)[0])


class Numbers(Question):
    """A number, in standard deviations about its mean."""

    def __init__(self, values: Array) -> None:
        self.values = np.asarray(values, dtype=np.float64)
        spread = float(self.values.std())
        self.residuals = (self.values - self.values.mean()) / (spread if spread > 0 else 1.0)
        self.strata = (self.values > np.median(self.values)).astype(np.int64)

    def part(self, chosen: NDArray[np.int64]) -> Numbers:
        return Numbers(self.values[chosen])

    @property
    def rarest(self) -> int:
        return int(min(self.strata.sum(), (1 - self.strata).sum()))

    def fitted(self, x: Array, strength: float = 1.0) -> tuple[Array, float]:
        from sklearn.linear_model import Ridge

        found = Ridge(alpha=1 / strength).fit(x, self.values)
        return np.asarray(found.coef_, dtype=np.float64), float(found.intercept_)

    def losses(self, said: Array) -> Array:
        return np.square(said - self.values)

    def concordance(self, said: Array) -> float:
        everyone = FollowUp(self.values.max() - self.values, np.ones(len(self.values), dtype=bool))
        return float(harrell(everyone, said)[0])


def cumulative_hazard(follow: FollowUp) -> Array:
    """The estimate of Nelson and Aalen [bags] at the time of every bag; it sums to the number of events."""
    at_risk = (follow.times[:, None] <= follow.times).sum(1)
    steps = follow.events / at_risk
    return np.asarray((follow.times[:, None] >= follow.times) @ steps, dtype=np.float64)

"""What a run may start from: what simple rules found in the training bags, or a length and random weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dasmil.baselines.rules import Rule, find_rules, scan_bags
from dasmil.baselines.whitening import Directions
from dasmil.models.base import MILModel
from dasmil.nn import Linear
from dasmil.stats import auroc
from dasmil.train.feed import Feed
from dasmil.train.held_out import chance_of
from dasmil.train.state import CHANCE

SCANNED_BAGS = 200
MEAN_STRENGTHS = (0.001, 0.01, 0.1, 1.0)
"""Inverse ridges of the logistic regression on the means of bags; cross-validation chooses."""
SURE = 0.15  # a rule with a lower loss, as a share of a constant guess, needs no better one


@dataclass(frozen=True, eq=False)
class Evidence:
    """What training bags say of a rule that others of them chose, by folds of patients.

    losses [bags]: of each bag, weighed by its class, as a share of a constant guess; chance: how often blind guesses,
    as many as kinds of rules, would have this AUROC.
    """

    losses: NDArray[np.float64]
    auroc: float
    chance: float

    @property
    def loss(self) -> float:
        return float(self.losses.mean())

    @property
    def holds(self) -> bool:
        """Whether it is better than blind guesses."""
        return self.chance < CHANCE and self.loss < 1

    @staticmethod
    def of(logits: NDArray[np.float64], labels: NDArray[np.int64], tried: int) -> Evidence:
        positive = labels == 1
        weights = len(labels) / (2 * np.where(positive, positive.sum(), (~positive).sum()))
        losses = weights * np.logaddexp(0, np.where(positive, -logits, logits)) / math.log(2)
        found = float(auroc(logits, positive)[0])
        return Evidence(losses, found, chance_of(labels, found, tried))


@dataclass(frozen=True, eq=False)
class Start:
    """kind "mean": a direction of the bags' mean features; "share": how many instances are of a type; "near": two types
    of instances that come near; "length": random weights and the length of this number (0, 1, 2, ...).
    """

    kind: Literal["mean", "share", "near", "length"]
    number: int = 0
    rate: float = 1.0
    """Learning rate in units of the run's: a faster one escapes from some plateaus only."""
    rule: Rule | None = None
    direction: NDArray[np.float64] | None = None
    bias: float = 0.0
    evidence: Evidence | None = None
    on_all: Start | None = None
    """The same from all training bags, where this one is from those that it learns from while starts compete."""

    def judged_by(self, chosen: NDArray[np.int64]) -> Start:
        """The same with the evidence of some bags only."""
        if self.evidence is None:
            return self
        return replace(self, evidence=replace(self.evidence, losses=self.evidence.losses[chosen]))

    @property
    def leads(self) -> bool:
        """Whether training bags that did not choose it say that it holds."""
        known = None if self.on_all is None else self.on_all.evidence
        return known is not None and known.holds

    @property
    def reads_between(self) -> bool:
        """Whether it sees the directions between bags too, in which stain and scanner differ."""
        return self.kind == "mean"


def length_starts(count: int, rates: Sequence[float]) -> list[Start]:
    """Random weights at different lengths, each with these learning rates."""
    return [Start("length", number // len(rates), rates[number % len(rates)]) for number in range(count)]


@dataclass(frozen=True)
class SimpleStarts:
    """What simple rules find in the training bags: the start of every kind from all of them, with its evidence, and
    those from the bags to learn from, the best of each kind first.
    """

    on_all: dict[str, Start]
    on_learn: dict[str, list[Start]]

    def leader(self, able: Set[str]) -> Start | None:
        """Of these kinds the simplest start that no other is clearly better than, if it beats blind guesses."""
        starts = [start for kind, start in self.on_all.items() if kind in able]
        known = {start: start.evidence for start in starts if start.evidence is not None}
        found = {start: evidence for start, evidence in known.items() if evidence.holds}
        if not found:
            return None
        best = min(found.values(), key=lambda evidence: evidence.loss)
        for start, evidence in found.items():
            apart = evidence.losses - best.losses
            if apart.mean() <= max(apart.std() / math.sqrt(len(apart)), SURE - best.loss):
                return start
        raise AssertionError("the best rule is as good as itself")


def simple_starts(train: Feed, learn: Feed, directions: Directions, most: int) -> SimpleStarts:
    """What simple rules find in the training bags (whitened, two classes); most: rules of a kind."""
    labels, patients = train.facts.labels, train.facts.patients
    chosen = _some(labels, SCANNED_BAGS)
    scan = scan_bags([train.bags[i] for i in chosen], directions)
    rules = find_rules(scan, labels[chosen], [patients[i] for i in chosen], 1)
    means = np.stack([train.bags[i].features.mean(0).numpy() for i in range(len(train.bags))])
    on_all = {"mean": mean_start(means, labels, patients).judged_by(chosen)} | {
        found.kind: Start(
            found.kind, rule=found.rules[0], evidence=Evidence.of(found.logits, labels[chosen], len(rules) + 1)
        )
        for found in rules
    }
    learned = np.flatnonzero(np.isin(train.facts.ids, learn.facts.ids))
    seen = np.flatnonzero(np.isin(chosen, learned))
    own = [patients[i] for i in chosen[seen]]
    learned_mean = mean_start(means[learned], labels[learned], [patients[i] for i in learned])
    on_learn = {"mean": [replace(learned_mean, evidence=None)]} | {
        found.kind: [Start(found.kind, rule=rule) for rule in found.rules]
        for found in find_rules(scan.part(seen), labels[chosen[seen]], own, most)
    }
    first = {kind: [replace(starts[0], on_all=on_all[kind]), *starts[1:]] for kind, starts in on_learn.items()}
    return SimpleStarts(on_all, first)


def _some(labels: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Numbers of at most so many bags, with every class in its share."""
    if len(labels) <= most:
        return np.arange(len(labels))
    rng = np.random.default_rng(0)
    parts = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    return np.sort(np.concatenate([part[: max(2, round(most * len(part) / len(labels)))] for part in parts]))


def mean_start(means: NDArray[np.float32], labels: NDArray[np.int64], patients: Sequence[str]) -> Start:
    """The direction of the mean features of bags [bags, k] that tells their classes apart, by logistic regression.

    Folds of patients choose its ridge, and their logits of bags that they did not see how much a logit is worth.
    """
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict

    centre, spread = means.mean(0), np.maximum(means.std(0), 1e-6)
    count = min(5, int(np.bincount(labels, minlength=2).min()), len(set(patients)))
    if count < 2:
        return Start("mean", direction=np.zeros(means.shape[1]))
    x = (means - centre) / spread
    folds = list(StratifiedGroupKFold(count, shuffle=True, random_state=0).split(x, labels, patients))
    if any(len(np.unique(labels[part])) < 2 for fold in folds for part in fold):
        return Start("mean", direction=np.zeros(means.shape[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of coming changes in scikit-learn's names
        chosen = LogisticRegressionCV(
            Cs=list(MEAN_STRENGTHS),  # pyright: ignore[reportArgumentType]
            cv=folds,
            scoring="neg_log_loss",
            class_weight="balanced",
            max_iter=500,
        ).fit(x, labels)
        again = LogisticRegression(C=float(chosen.C_[0]), class_weight="balanced", max_iter=500)
        unseen = np.asarray(cross_val_predict(again, x, labels, cv=folds, method="decision_function"))
        worth = LogisticRegression(class_weight="balanced").fit(unseen.reshape(-1, 1), labels)
    scale = max(0.0, float(worth.coef_[0, 0]))
    weights = scale * (chosen.coef_[0] / spread).astype(np.float64)
    bias = float(scale * chosen.intercept_[0] + worth.intercept_[0] - weights @ centre)
    evidence = Evidence.of(scale * unseen + float(worth.intercept_[0]), labels, tried=3)
    return Start("mean", direction=weights, bias=bias, evidence=evidence)


@torch.no_grad()
def begin(model: MILModel, start: Start, feed: Feed) -> None:
    """Put a start into an untrained model, where it can begin so."""
    rule = start.rule
    if start.kind == "mean":
        assert start.direction is not None
        last = model.classifier
        if model.begin_mean(torch.from_numpy(start.direction).float()):
            assert isinstance(last, Linear)
            assert last.bias is not None
            last.bias.fill_(start.bias)
    elif rule is not None:
        units = torch.eye(model.encoded)  # the model reads the types of the rule, and nothing else
        first, second = units[0], units[len(rule.types) - 1]
        begun = (
            model.begin_share(first, rule.value)
            if rule.kind == "share"
            else model.begin_near(first, second, rule.value, float(np.median(feed.facts.sizes)))
        )
        if begun:
            _calibrate(model, feed)


def _calibrate(model: MILModel, feed: Feed) -> None:
    """Scale and shift the logit of a start so that it is one of the bags to learn from."""
    from sklearn.linear_model import LogisticRegression

    model.eval()
    logits = np.empty(len(feed.facts.ids))
    for step in feed.batches():
        logits[step.bags] = model(step.features, step.coords, None, step.section).logit.cpu().numpy()
    centre, spread = logits.mean(), max(float(logits.std()), 1e-6)
    fitted = LogisticRegression(class_weight="balanced").fit(((logits - centre) / spread)[:, None], feed.facts.labels)
    scale = float(fitted.coef_[0, 0]) / spread
    last = model.classifier
    assert isinstance(last, Linear)
    assert last.bias is not None
    last.weight.mul_(scale)
    last.bias.copy_((last.bias - centre) * scale + float(fitted.intercept_[0]))

"""What a run may start from: what simple rules found in the training bags, or a length and random weights."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dasmil.baselines.question import Classes, Numbers, Question, Times
from dasmil.baselines.rules import COUNTED, COUNTS, Rule, find_counts, find_rules, scan_bags
from dasmil.candidates.whitening import Directions
from dasmil.models.base import MILModel
from dasmil.nn import Linear
from dasmil.tasks import NumberTarget, TimeTarget
from dasmil.train.feed import Facts, Feed
from dasmil.train.state import CHANCE

Kind = Literal["mean", "share", "near", "within", "length"]
SCANNED_BAGS = 200
MEAN_STRENGTHS = (0.001, 0.01, 0.1, 1.0)
"""Inverse ridges of the regression on the means of bags; folds of patients choose."""
STILL = 1e-4
"""Means of whitened features that vary less than this differ by rounding."""
SURE = 0.3  # a rule with a lower loss, as a share of a constant guess, holds clearly
COUNTING = 0.2  # by so much has the loss of a rule that counts to be lower than that of others
ALIKE = 0.01  # AUROCs or C-indices that differ by less do not tell rules apart


@dataclass(frozen=True, eq=False)
class Evidence:
    """What training bags say of a rule that others of them chose, by folds of patients.

    losses [bags]: of each bag, as a share of a constant guess; rank: how often of two bags the right one comes first
    (AUROC, C-index); chance: how often blind guesses, as many as kinds of rules, would order the bags so well.
    """

    losses: NDArray[np.float64]
    rank: float
    chance: float

    @property
    def loss(self) -> float:
        return float(self.losses.mean())

    @property
    def holds(self) -> bool:
        """Whether it is better than blind guesses."""
        return self.chance < CHANCE and self.loss < 1

    @staticmethod
    def of(said: NDArray[np.float64], asked: Question, tried: int) -> Evidence:
        return Evidence(asked.losses(said), asked.concordance(said), asked.chance(said, tried))


def question_of(facts: Facts) -> Question | None:
    """What simple rules may tell of these bags: two classes, one time, one number; None where there is more."""
    if facts.task.labels is not None:
        return Classes(facts.labels) if facts.classes == 2 else None
    first = facts.task.targets[0]
    if len(facts.task.targets) > 1:
        return None
    if isinstance(first, TimeTarget):
        return Times(facts.targets[:, 0], facts.targets[:, 1] == 1)
    return Numbers(first.standardised(facts.targets[:, 0])) if isinstance(first, NumberTarget) else None


@dataclass(frozen=True, eq=False)
class Start:
    """kind "mean": a direction of the bags' mean features; "share": how many instances are of a type; "near": two types
    of instances that come near; "within": how many instances have one of a type near them; "length": random weights and
    the length of this number (0, 1, 2, ...).
    """

    kind: Kind
    number: int = 0
    rate: float = 1.0
    """Learning rate in units of the run's: a faster one escapes from some plateaus only."""
    rule: Rule | None = None
    direction: NDArray[np.float64] | None = None
    bias: float = 0.0
    evidence: Evidence | None = None
    counts: bool = False
    """Of a number: whether instances are summed up, because how many there are tells more than what share they are."""
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
    def options(self) -> dict[str, Any]:
        """What the model needs to say this: whether a pair comes near is said by the one that does, how many instances
        have one near by all of them, and by a second head what they have in common.
        """
        counting = {"heads": 2, "self_pair": True}
        if self.counts:
            return {"pooling": "sum", **counting}
        needed: dict[Kind, dict[str, Any]] = {"near": {"pooling": "max"}, "within": {"pooling": "mean", **counting}}
        return needed.get(self.kind, {})

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
    floor: float = 0.0
    """The loss of the best that can be hoped for, as a share of a constant guess."""

    def leader(self, able: Set[str]) -> Start | None:
        """Of these kinds the start with the lowest loss that beats blind guesses.

        Where several are sure and order the bags alike, the simplest: their losses then only tell how steep a
        regression on so few bags may be. A rule that counts has to be clearly better than the others: where two
        instances decide, it holds as well, but a mean over all of them tells their types apart less sharply.
        """
        starts = [start for kind, start in self.on_all.items() if kind in able]
        known = {start: start.evidence for start in starts if start.evidence is not None and start.evidence.holds}
        margin = {"within": COUNTING * (1 - self.floor)}
        losses = {start: evidence.loss + margin.get(start.kind, 0.0) for start, evidence in known.items()}
        highest = max((evidence.rank for evidence in known.values()), default=0.0)
        for start, evidence in known.items():
            if losses[start] < self.floor + SURE and evidence.rank >= highest - ALIKE:
                return start
        return min(losses, key=losses.__getitem__, default=None)


def simple_starts(train: Feed, learn: Feed, directions: Directions, most: int) -> SimpleStarts:
    """What simple rules find in the training bags (whitened; see ``question_of``); most: rules of a kind."""
    asked, patients = question_of(train.facts), train.facts.patients
    assert asked is not None
    chosen = _some(train.facts.labels, SCANNED_BAGS)
    counted = len(COUNTS) if isinstance(asked, Numbers) else COUNTED
    scan, looked = scan_bags([train.bags[i] for i in chosen], directions, counted), asked.part(chosen)
    own_all = [patients[i] for i in chosen]
    rules = find_rules(scan, looked, own_all, 1)
    means = bag_means(train)
    on_all = {"mean": mean_start(means, asked, patients).judged_by(chosen)} | {
        found.kind: Start(found.kind, rule=found.rules[0], evidence=Evidence.of(found.said, looked, len(rules) + 1))
        for found in rules
    }
    learned = np.flatnonzero(np.isin(train.facts.ids, learn.facts.ids))
    seen = np.flatnonzero(np.isin(chosen, learned))
    own = [patients[i] for i in chosen[seen]]
    learned_mean = mean_start(means[learned], asked.part(learned), [patients[i] for i in learned])
    on_learn = {"mean": [replace(learned_mean, evidence=None)]} | {
        found.kind: [Start(found.kind, rule=rule) for rule in found.rules]
        for found in find_rules(scan.part(seen), looked.part(seen), own, most)
    }
    first = {kind: [replace(starts[0], on_all=on_all[kind]), *starts[1:]] for kind, starts in on_learn.items()}
    sums = find_counts(scan, train.facts.sizes[chosen], looked, own_all) if isinstance(looked, Numbers) else None
    if sums is not None:
        evidence = Evidence.of(sums.said, looked, len(rules) + 2)
        on_all["count"] = Start("within", rule=sums.rules[0], evidence=evidence, counts=True)
    return SimpleStarts(on_all, first, asked.floor)


def bag_means(feed: Feed) -> NDArray[np.float32]:
    """The mean features of every bag [bags, k]."""
    return np.stack([feed.bags[i].features.mean(0).numpy() for i in range(len(feed.bags))])


def _some(labels: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Numbers of at most so many bags, with every class in its share."""
    if len(labels) <= most:
        return np.arange(len(labels))
    rng = np.random.default_rng(0)
    parts = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    return np.sort(np.concatenate([part[: max(2, round(most * len(part) / len(labels)))] for part in parts]))


def mean_start(means: NDArray[np.float32], asked: Question, patients: Sequence[str]) -> Start:
    """The direction of the mean features of bags [bags, k] that tells best what is asked, by a ridge regression.

    Folds of patients choose its ridge, and what they say of bags that they did not see how much that is worth; where
    that is nothing, it says the same of every bag.
    """
    centre, spread = means.mean(0), np.maximum(means.std(0), STILL)
    x = ((means - centre) / spread).astype(np.float64)
    folds = asked.folds(patients)
    if not folds or any(not asked.part(part).rarest for fold in folds for part in fold):
        return Start("mean", direction=np.zeros(means.shape[1]))
    tried = {strength: np.zeros(len(x)) for strength in MEAN_STRENGTHS}
    for strength, said in tried.items():
        for rest, fold in folds:
            weights, constant = asked.part(rest).fitted(x[rest], strength)
            said[fold] = x[fold] @ weights + constant
    chosen = min(tried, key=lambda strength: asked.losses(tried[strength]).mean())
    unseen = tried[chosen]
    worth, shift = asked.fitted(unseen[:, None])
    scale = max(0.0, float(worth[0]))
    weights, constant = asked.fitted(x, chosen)
    direction = scale * weights / spread
    bias = float(scale * constant + shift - direction @ centre)
    return Start("mean", direction=direction, bias=bias, evidence=Evidence.of(scale * unseen + shift, asked, tried=3))


@torch.no_grad()
def begin(model: MILModel, start: Start, feed: Feed, guess: Tensor) -> None:
    """Put a start into an untrained model, where it can begin so; guess: outputs of a constant guess."""
    rule = start.rule
    if start.kind == "mean":
        assert start.direction is not None
        last = model.classifier
        noisy = not feed.facts.task.exact
        if model.begin_mean(torch.from_numpy(start.direction).float(), only=noisy):
            assert isinstance(last, Linear)
            assert last.bias is not None
            last.bias.copy_(guess + start.bias)
    elif rule is not None:
        units = torch.eye(model.encoded)  # the model reads the types of the rule, and nothing else
        first, second = units[0], units[len(rule.types) - 1]
        instances = float(np.median(feed.facts.sizes))
        if rule.kind == "share":
            begun = model.begin_share(first, rule.value)
        elif rule.kind == "near":
            begun = model.begin_near(first, second, rule.value, instances)
        else:
            assert rule.second is not None
            looks = None if rule.first is None else first
            begun = model.begin_within(looks, second, rule.length, instances, rule.second.share)
        if begun:
            _calibrate(model, feed, guess)


def _calibrate(model: MILModel, feed: Feed, guess: Tensor) -> None:
    """Scale and shift the outputs of a start so that they are what the bags to learn from ask for.

    Several outputs are hazards of bins of time, which a rule shifts alike.
    """
    asked = question_of(feed.facts)
    assert asked is not None
    model.eval()
    said = np.empty(len(feed.facts.ids))
    for step in feed.batches():
        output = model(step.features, step.coords, None, step.section).logit
        said[step.bags] = (output if output.ndim == 1 else output[:, 0]).cpu().numpy()
    centre, spread = said.mean(), max(float(said.std()), 1e-6)
    weights, constant = asked.fitted(((said - centre) / spread)[:, None])
    scale = float(weights[0]) / spread
    last = model.classifier
    assert isinstance(last, Linear)
    assert last.bias is not None
    last.weight.mul_(scale)
    last.bias.copy_(guess + (float(last.bias[0]) - centre) * scale + constant)

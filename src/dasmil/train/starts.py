"""What a run may start from: what simple rules found in the training bags, or a length and random weights."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dasmil.baselines.relations import Relation, find_relations
from dasmil.models.base import MILModel
from dasmil.nn import Linear
from dasmil.train.feed import Feed

SCANNED_BAGS = 200
MEAN_STRENGTHS = (0.001, 0.01, 0.1, 1.0)
"""Inverse ridges of the logistic regression on the means of bags; cross-validation chooses."""


@dataclass(frozen=True, eq=False)
class Start:
    """kind "mean": a direction of the bags' mean features; "relation": two types of instances that come near;
    "length": random weights and the length of this number (0, 1, 2, ...).

    reads: whether it sees the directions between bags too, in which stain and scanner differ.
    """

    kind: Literal["mean", "relation", "length"]
    number: int = 0
    rate: float = 1.0
    """Learning rate in units of the run's: a faster one escapes from some plateaus only."""
    relation: Relation | None = None
    direction: NDArray[np.float64] | None = None
    bias: float = 0.0

    @property
    def reads_between(self) -> bool:
        return self.kind == "mean"


def length_starts(count: int, rates: Sequence[float]) -> list[Start]:
    """Random weights at different lengths, each with these learning rates."""
    return [Start("length", number // len(rates), rates[number % len(rates)]) for number in range(count)]


def simple_starts(feed: Feed, within: int, relations: int) -> list[Start]:
    """What simple rules find in the bags to learn from (whitened, two classes)."""
    labels = feed.facts.labels
    chosen = _some(labels, SCANNED_BAGS)
    bags = [feed.bags[i] for i in chosen]
    found = find_relations(bags, labels[chosen], within, relations)
    return [mean_start(feed), *(Start("relation", relation=relation) for relation in found)]


def mean_start(feed: Feed) -> Start:
    """The direction of the mean features that tells the bags to learn from apart."""
    means = np.stack([feed.bags[i].features.mean(0).numpy() for i in range(len(feed.bags))])
    direction, bias = mean_direction(means, feed.facts.labels)
    return Start("mean", direction=direction, bias=bias)


def _some(labels: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Numbers of at most so many bags, with every class in its share."""
    if len(labels) <= most:
        return np.arange(len(labels))
    rng = np.random.default_rng(0)
    parts = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    return np.sort(np.concatenate([part[: max(2, round(most * len(part) / len(labels)))] for part in parts]))


def mean_direction(means: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[NDArray[np.float64], float]:
    """Weights [k] and bias of a logistic regression on the mean features of bags [bags, k].

    Folds choose its ridge, and their logits of bags that they did not see how much a logit is worth.
    """
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.model_selection import cross_val_predict

    centre, spread = means.mean(0), np.maximum(means.std(0), 1e-6)
    folds = min(5, int(np.bincount(labels).min()))
    if folds < 2:
        return np.zeros(means.shape[1]), 0.0
    x = (means - centre) / spread
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
        unseen = cross_val_predict(again, x, labels, cv=folds, method="decision_function")
        worth = LogisticRegression(class_weight="balanced").fit(np.asarray(unseen).reshape(-1, 1), labels)
    scale = max(0.0, float(worth.coef_[0, 0]))
    weights = scale * (chosen.coef_[0] / spread).astype(np.float64)
    return weights, float(scale * chosen.intercept_[0] + worth.intercept_[0] - weights @ centre)


@torch.no_grad()
def begin(model: MILModel, start: Start, feed: Feed) -> None:
    """Put a start into an untrained model, where it can begin so."""
    last = model.classifier
    if start.kind == "mean":
        assert start.direction is not None
        if model.begin_mean(torch.from_numpy(start.direction).float()):
            assert isinstance(last, Linear)
            assert last.bias is not None
            last.bias.fill_(start.bias)
    elif start.kind == "relation":
        relation = start.relation
        assert relation is not None
        first, second = (torch.zeros(model.encoded) for _ in range(2))
        first[: len(relation.first)] = torch.from_numpy(relation.first)
        second[: len(relation.second)] = torch.from_numpy(relation.second)
        if model.begin_near(first, second, relation.length, float(np.median(feed.facts.sizes))):
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

"""Training bags that are held out while starts compete: which starts learn something, and which overfit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dasmil.data.splits import split_patients
from dasmil.train.feed import Feed

SHARE = 0.25
FEWEST = 4
"""Held-out bags of every class without which nothing can be judged."""


@dataclass(frozen=True)
class Judge:
    """The training bags in two parts, by patient: starts learn from one and are judged on the other."""

    learn: Feed
    feed: Feed

    @staticmethod
    def of(train: Feed) -> Judge | None:
        """A quarter of the training bags, stratified by class; None where that is fewer than four of a class."""
        facts = train.facts
        if facts.task.labels is None:
            return _judge_of_task(train)
        if np.bincount(facts.labels).min() * SHARE < FEWEST or len(set(facts.patients)) < 2:
            return None
        parts = split_patients(facts.patients, facts.labels.tolist(), {"learn": 1 - SHARE, "judge": SHARE})
        learn, judge = (facts.labels[parts[name]] for name in ("learn", "judge"))
        if np.bincount(judge, minlength=facts.classes).min() < FEWEST or len(np.unique(learn)) < facts.classes:
            return None  # a few patients with many bags each
        return Judge(train.part(parts["learn"]), train.part(parts["judge"]))


def _judge_of_task(train: Feed) -> Judge | None:
    """A quarter of the bags, balanced by event, class or upper half; None where fewer than eight would judge, or, of
    times, fewer than four events.
    """
    facts = train.facts
    if len(facts.ids) * SHARE < 2 * FEWEST or len(set(facts.patients)) < 2:
        return None
    if facts.task.kind == "survival" and facts.labels.sum() * SHARE < FEWEST:
        return None
    parts = split_patients(facts.patients, facts.labels.tolist(), {"learn": 1 - SHARE, "judge": SHARE})
    return Judge(train.part(parts["learn"]), train.part(parts["judge"]))

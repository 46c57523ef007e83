"""Survival and numbers start from simple rules, as classes do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dasmil
from dasmil.devices import choose_device
from dasmil.stats import FollowUp, harrell
from dasmil.tasks import NumberTarget, Task, multilabel, regression, survival
from dasmil.train.feed import Feed
from dasmil.train.starts import question_of
from tests.baselines.rare_pairs import rare_pairs

RATIO = 30.0


def patients(count: int, seed: int = 0) -> list[dasmil.Bag]:
    """Slides whose hazard is thirty times as high where two rare types come within 400 um; a third is censored."""
    rng = np.random.default_rng(seed)
    found = []
    for bag in rare_pairs(count, seed):
        when, left = rng.exponential(1 / RATIO if bag.label else 1.0), rng.uniform(0, 1.5)
        values = {"time": float(min(when, left)), "event": float(when <= left), "near": 5.0 + 2.0 * (bag.label or 0)}
        values["near"] += float(rng.normal(0, 0.2))
        found.append(replace(bag, label=None, targets=values))
    return found


TRAIN = patients(60)


def learned(task: Task, train: list[dasmil.Bag] = TRAIN, **settings: object) -> dasmil.TrainedRun:
    return dasmil.fit("das-mil", train, task=task, epochs=10, progress=False, **settings)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "task", [survival(), survival(method="cox"), regression("near")], ids=["hazards", "cox", "number"]
)
def test_a_planted_pair_is_where_training_starts(task: Task) -> None:
    test, run = patients(60, seed=1), learned(task)
    assert run.model.config["pooling"] == "max"  # whether a pair is near is no matter of how many are
    (row,) = run.model.learned_distances()
    assert 360 < row["midpoint"] < 572  # 400 to 520 um tells the slides apart
    assert run.attempts[0].proven
    assert run.attempts[0].held_out["concordance"] > 0.65
    said = np.asarray(run.predict(test))
    if task.kind == "regression":
        truth = np.array([bag.targets["near"] for bag in test], dtype=float)
        assert 1 - np.square(said - truth).mean() / truth.var() > 0.8
    else:
        follow = FollowUp(
            np.array([bag.targets["time"] for bag in test]), np.array([bag.targets["event"] == 1 for bag in test])
        )
        near = np.array([bag.targets["near"] > 6 for bag in test], dtype=float)  # type: ignore[operator]
        assert harrell(follow, said)[0] > harrell(follow, near)[0] - 0.04  # as good as the true hazard


def test_the_users_pooling_stays() -> None:
    assert learned(survival(), model_options={"pooling": "mean"}).model.config["pooling"] == "mean"


def test_shuffled_times_have_no_rule() -> None:
    order = np.random.default_rng(4).permutation(60)
    shuffled = [replace(bag, targets=TRAIN[i].targets) for bag, i in zip(TRAIN, order)]
    run = learned(survival(), shuffled, starts=2)
    assert not run.attempts[0].proven
    assert run.model.config["pooling"] == "mean"


def test_several_targets_are_question_of_no_single_rule() -> None:
    values = multilabel([NumberTarget("near"), NumberTarget("time")])
    device = choose_device("cpu")
    for task, known in ((values, False), (survival(), True), (regression("near"), True)):
        feed = Feed(TRAIN[:4], device, memory_gb=1.0, task=task)
        fitted = replace(feed.facts, task=task.fitted(feed.facts.targets))
        assert (question_of(fitted) is not None) == known

"""Survival and numbers start from simple rules, as classes do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial import KDTree

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
    assert run.attempts[0].epoch == 0
    assert "nothing found: concordance 0." in run.attempts[0].reason


def composed(count: int, seed: int) -> list[dasmil.Bag]:
    """Patients with cells of six types; the hazard grows weakly with the share of the second."""
    rng = np.random.default_rng(seed)
    found = []
    for number, shares in enumerate(rng.dirichlet([4, 1, 1, 0.5, 1, 3], size=count)):
        kinds = rng.choice(6, size=200, p=shares)
        when, left = rng.exponential() * np.exp(-4 * shares[1] + 2 * shares[0]), rng.exponential() * 2
        found.append(dasmil.Bag(
            torch.eye(6)[torch.from_numpy(kinds)], torch.from_numpy(500 * rng.random((200, 2))).float(),
            bag_id=f"b{number}", unit="um", targets={"time": float(min(when, left)), "event": float(when <= left)},
        ))  # fmt: skip
    return found


@pytest.mark.parametrize("count", [24, 40])  # without and with bags that judge
def test_where_nothing_is_told_the_regression_on_means_stays(count: int) -> None:
    """Random weights, which few held-out bags cannot judge, would order patients at random."""
    test, unproven = composed(50, 99), 0
    x = np.array([[*bag.features.double().mean(0).tolist(), 1.0] for bag in test])
    for seed in range(4):
        run = dasmil.fit("das-mil", composed(count, seed), task=survival(method="cox"), epochs=6, progress=False)[0]
        if run.attempts[0].proven:
            continue
        unproven += 1
        assert run.attempts[0].epoch == 0
        assert run.attempts[0].held_out["bags"] == count  # folds of all patients said what it is worth
        said = np.asarray(run.predict(test))
        left = said - x @ np.linalg.lstsq(x, said, rcond=None)[0]
        assert left.std() < 1e-4 * max(said.std(), 0.1)  # linear in the mean features
    assert unproven


def touching(count: int, seed: int, *, share: bool) -> list[dasmil.Bag]:
    """Cells of four types in fields of any size; how many of the second type have one of the fourth within 6 um, or
    which share of all that is.
    """
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        n = int(rng.integers(40, 160))
        places, kinds = 10 * np.sqrt(n) * rng.random((n, 2)), rng.choice(4, size=n, p=[0.4, 0.3, 0.2, 0.1])
        kinds[:2] = 1, 3
        ones, fours = np.flatnonzero(kinds == 1), np.flatnonzero(kinds == 3)
        moved = ones[rng.random(len(ones)) < rng.random()]
        places[moved] = places[rng.choice(fours, len(moved))] + rng.normal(0, 2, (len(moved), 2))
        near = float((KDTree(places[fours]).query(places[ones])[0] < 6).sum())
        value = (100 * near / n if share else near) + rng.normal(0, 0.3)
        found.append(dasmil.Bag(
            torch.eye(4)[torch.from_numpy(kinds)], torch.from_numpy(places).float(), bag_id=f"b{number}", unit="um",
            targets={"touch": float(value)},
        ))  # fmt: skip
    return found


@pytest.mark.parametrize("share", [False, True], ids=["count", "share"])
def test_training_bags_say_whether_instances_are_summed_up(share: bool) -> None:
    train, test = touching(100, 0, share=share), touching(60, 1, share=share)
    run = dasmil.fit("das-mil", train, task=regression("touch"), epochs=30, progress=False)[0]
    assert run.model.config["pooling"] == ("mean" if share else "sum")
    truth = np.array([bag.targets["touch"] for bag in test], dtype=float)
    assert 1 - np.square(np.asarray(run.predict(test)) - truth).mean() / truth.var() > 0.95


def test_numbers_of_cells_of_a_type_are_summed_up() -> None:
    def counted(bags: list[dasmil.Bag]) -> list[dasmil.Bag]:
        return [replace(bag, targets={"cells": float(bag.features[:, 2].sum())}) for bag in bags]

    train, test = counted(touching(60, 0, share=True)), counted(touching(30, 1, share=True))
    run = dasmil.fit("das-mil", train, task=regression("cells"), epochs=30, progress=False)[0]
    assert run.model.config["pooling"] == "sum"
    truth = np.array([bag.targets["cells"] for bag in test], dtype=float)
    assert 1 - np.square(np.asarray(run.predict(test)) - truth).mean() / truth.var() > 0.95
    account = dasmil.explain(run.model, test[0])
    assert float(account.contributions.sum() + account.bias) == pytest.approx(float(account.logit), abs=1e-4)


def test_a_mean_does_not_start_a_sum_that_the_user_asked_for() -> None:
    run = dasmil.fit(
        "das-mil", touching(40, 0, share=True), task=regression("touch"), epochs=2, starts=2, progress=False,
        model_options={"pooling": "sum"},
    )[0]  # fmt: skip
    assert run.model.config["pooling"] == "sum"
    assert run.attempts[0].epoch > 0


def test_several_targets_are_question_of_no_single_rule() -> None:
    values = multilabel([NumberTarget("near"), NumberTarget("time")])
    device = choose_device("cpu")
    for task, known in ((values, False), (survival(), True), (regression("near"), True)):
        feed = Feed(TRAIN[:4], device, memory_gb=1.0, task=task)
        fitted = replace(feed.facts, task=task.fitted(feed.facts.targets))
        assert (question_of(fitted) is not None) == known

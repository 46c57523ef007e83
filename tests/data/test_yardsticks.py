"""The tests of the multiple-instance assumption: key instances make the label, shortcuts turn round in test bags."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.stats import kstest
from sklearn.metrics import roc_auc_score

from dasmil.data.yardsticks import (
    BACKGROUND,
    FAR,
    GOOD,
    MIL_TESTS,
    NEAR_UM,
    POISON,
    TYPE_A,
    TYPE_C,
    Split,
    mil_test,
    shifted_mean,
    shifted_mean_score,
)
from dasmil.errors import InputError
from dasmil.types import Bag

SPLITS: tuple[Split, Split] = ("train", "test")


def kinds(bag: Bag) -> np.ndarray:
    assert bag.instance_labels is not None
    return bag.instance_labels.numpy()


def count(bag: Bag, kind: int) -> int:
    return int((kinds(bag) == kind).sum())


def closest(bag: Bag) -> float:
    """Smallest distance of an A and a C; infinite without one of them."""
    coords, types = bag.coords.numpy(), kinds(bag)
    return float(cdist(coords[types == TYPE_A], coords[types == TYPE_C]).min(initial=np.inf))


def dense(bag: Bag) -> bool:
    """Whether ten instances of background lie within 60 um of one of them."""
    background = bag.coords.numpy()[kinds(bag) == BACKGROUND]
    return bool(((cdist(background, background) < 60).sum(1) >= 8).any())


@functools.cache
def made(name: str, split: Split) -> list[Bag]:
    return mil_test(name, 200, split)


def of(name: str, split: Split, label: int) -> list[Bag]:
    return made(name, split)[label::2]


@pytest.mark.parametrize("name", MIL_TESTS)
def test_a_bag_is_positive_iff_it_has_key_instances(name: str) -> None:
    for split in SPLITS:
        bags = made(name, split)
        assert [bag.label for bag in bags] == [0, 1] * 100
        assert [bool(bag.key_instances.any()) for bag in bags] == [False, True] * 100  # pyright: ignore
        assert all(bool(bag.coords.any()) == name.endswith("-near") for bag in bags)


def test_poison_changes_sides() -> None:
    for split, label in zip(SPLITS, (0, 1)):
        assert {count(bag, POISON) for bag in of("single-concept", split, label)} == {1}
        assert {count(bag, POISON) for bag in of("single-concept", split, 1 - label)} == {0}
        assert all(dense(bag) for bag in of("single-concept-near", split, label))
        assert not any(dense(bag) for bag in of("single-concept-near", split, 1 - label))
    assert {count(bag, POISON) for bag in of("multi-concept", "train", 0)} == {1}
    assert {count(bag, POISON) for bag in of("multi-concept", "test", 0)} == {0}
    assert {count(bag, POISON) for bag in of("multi-concept", "test", 1)} == {1}
    for share in (
        np.mean([count(bag, POISON) for bag in of("multi-concept", "train", 1)]),
        np.mean([dense(bag) for bag in of("multi-concept-near", "train", 1)]),
    ):
        assert 0.03 < share < 0.2  # one in ten


def test_numbers_of_instances() -> None:
    """As published: all counts include both ends."""
    assert {count(bag, BACKGROUND) for bag in of("single-concept", "train", 0)} == set(range(1, 10))
    assert {count(bag, BACKGROUND) for bag in of("single-concept", "train", 1)} == set(range(1, 5))
    assert {count(bag, GOOD) for bag in of("single-concept", "test", 1)} == {1, 2, 3}
    assert {count(bag, TYPE_C) for bag in of("multi-concept", "test", 1)} == {1, 2, 3, 4}
    for bag in of("multi-concept", "train", 0) + of("false-frequency", "train", 0):
        assert count(bag, TYPE_A) + count(bag, TYPE_C) == 1
    often = [(count(bag, TYPE_A), count(bag, TYPE_C)) for bag in of("false-frequency", "test", 0)]
    assert {max(pair) for pair in often} == {35, 36, 37, 38, 39}
    assert {min(pair) for pair in often} == {0}
    assert np.mean([a > 0 for a, _ in often]) == pytest.approx(4 / 9, abs=0.15)


def test_features() -> None:
    bags = of("single-concept", "train", 1)
    good = np.concatenate([bag.features.numpy()[kinds(bag) == GOOD] for bag in bags])
    wide = (good**2).mean(1) > 4.5
    assert wide.mean() == pytest.approx(0.5, abs=0.12)
    assert good[wide].std() == pytest.approx(3, abs=0.1)
    assert good[~wide].mean() == pytest.approx(1, abs=0.1)
    poison = np.concatenate([bag.features.numpy()[kinds(bag) == POISON] for bag in of("multi-concept", "train", 0)])
    assert (poison.mean(), poison.std()) == pytest.approx((-10, 0.1), abs=0.01)
    background = np.concatenate([bag.features.numpy()[kinds(bag) == BACKGROUND] for bag in bags])
    assert kstest(background.ravel(), "norm").pvalue > 0.001


@pytest.mark.parametrize("name", [name for name in MIL_TESTS if name.endswith("-near")])
def test_pairs_are_near_or_clearly_far(name: str) -> None:
    for split in SPLITS:
        assert max(closest(bag) for bag in of(name, split, 1)) <= NEAR_UM + 1e-3
        assert min(closest(bag) for bag in of(name, split, 0)) >= FAR * NEAR_UM - 1e-3
    if name == "false-frequency-near":
        numbers = {count(bag, TYPE_A) + count(bag, TYPE_C) for bag in of(name, "test", 0)}
        assert numbers == {36, 37, 38, 39, 40}
    if name == "single-concept-near":  # types alone do not say the class
        found = [np.mean([count(bag, TYPE_A) for bag in of(name, "train", label)]) for label in (0, 1)]
        assert found[0] == pytest.approx(found[1], abs=0.4)


def test_equal_arguments_give_equal_bags() -> None:
    first, again, other = (mil_test("single-concept-near", 4, seed=seed) for seed in (3, 3, 4))
    assert all(bool((a.features == b.features).all() and (a.coords == b.coords).all()) for a, b in zip(first, again))
    assert first[0].features.shape != other[0].features.shape or bool((first[0].features != other[0].features).any())


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match="single-concept"):
        mil_test("single", 10)
    with pytest.raises(InputError, match="expected 'train' or 'test'"):
        mil_test("single-concept", 10, "val")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="at least 2"):
        mil_test("single-concept", 1)


def test_the_best_score_of_shifted_means_is_that_of_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The AUROC at delta 2 and 3 against bags that are drawn here, without the module."""
    monkeypatch.setattr("dasmil.data.yardsticks.SHIFTED_FEATURES", 1)  # the score reads the first feature alone
    rng = np.random.default_rng(0)
    for delta in (2.0, 3.0):
        truth, own = [], []
        for i in range(4000):
            x = rng.standard_normal(rng.integers(15, 46))
            if i % 2:
                start = rng.integers(len(x) - 2)
                x[start : start + 3] += delta
            ratios = [np.exp(delta * x[u : u + 3].sum() - 1.5 * delta**2) for u in range(len(x) - 2)]
            own.append(np.log(np.mean(ratios)))
            truth.append(i % 2)
        bags = shifted_mean(4000, delta, "test")
        scores = np.array([shifted_mean_score(bag) for bag in bags])
        found = roc_auc_score([bag.label for bag in bags], scores)
        assert found == pytest.approx(roc_auc_score(truth, own), abs=0.015)
        # A calibrated logit: the mean probability is the share of positive bags.
        assert (1 / (1 + np.exp(-scores))).mean() == pytest.approx(0.5, abs=0.02)


def test_the_bayes_score_of_a_bag_by_hand() -> None:
    bag = Bag(torch.tensor([[1.0], [2.0], [0.0], [-1.0]]), torch.zeros(4, 2), "um", "a", metadata={"delta": 2.0})
    first, second = np.exp(2 * 3 - 6), np.exp(2 * 1 - 6)
    assert shifted_mean_score(bag) == pytest.approx(np.log((first + second) / 2))


def test_shifted_runs_lie_side_by_side_in_positive_bags_alone() -> None:
    bags = shifted_mean(200, 5.0)
    assert {15, 45} <= {len(bag) for bag in shifted_mean(400)}
    for bag in bags:
        places = np.flatnonzero(bag.key_instances.numpy())
        assert len(places) == (3 if bag.label else 0)
        assert not bag.label or np.ptp(places) == 2
        assert torch.equal(bag.coords[:, 0], torch.arange(len(bag)).float())
    shifted = np.concatenate([bag.features[bag.key_instances, 0].numpy() for bag in bags if bag.label])
    assert shifted.mean() == pytest.approx(5.0, abs=0.2)
    with pytest.raises(InputError, match="expected a number"):
        shifted_mean(4, float("nan"))

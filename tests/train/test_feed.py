"""What each run sees, and in which order."""

import threading

import numpy as np
import pytest
import torch
from toy import toy_bags

from dasmil.errors import DataError
from dasmil.train.feed import Feed, bag_order, read_ahead
from dasmil.types import Bag

CPU = torch.device("cpu")


def rngs(*seeds):
    return [np.random.default_rng(s) for s in seeds]


def test_every_run_sees_every_bag_once_in_steps_of_equal_size():
    sizes = np.array([5, 6, 5, 7, 6, 5, 5])
    order = bag_order(sizes, *rngs(9), rngs(0, 1, 2))
    for row in order:
        assert sorted(row) == list(range(7))
    assert (sizes[order] == sizes[order[0]]).all()
    assert len({tuple(row) for row in order}) > 1


def test_each_runs_order_is_uniform():
    sizes = np.array([5, 5, 6])
    counts = np.zeros((2, 3, 3))
    for trial in range(3000):
        order = bag_order(sizes, *rngs(20_000 + trial), rngs(trial, 10_000 + trial))
        for run in range(2):
            counts[run, np.arange(3), order[run]] += 1
    assert np.abs(counts / 3000 - 1 / 3).max() < 0.04  # every bag equally often at every place


def test_steps_hold_the_bags_they_name():
    bags = toy_bags(12)
    feed = Feed(bags, CPU, memory_gb=1.0)
    seen = []
    for step in feed.epoch(*rngs(9), rngs(3, 4)):
        for run, number in enumerate(step.bags):
            assert torch.equal(step.features[run], bags[number].features)
            assert torch.equal(step.coords[run], bags[number].coords)
        seen.append(step.bags)
    assert sorted(np.stack(seen)[:, 1]) == list(range(12))


class Lazy:
    """Bags that are made when asked for; counts who asked."""

    def __init__(self, bags):
        self.bags, self.threads = bags, set()

    def __len__(self):
        return len(self.bags)

    def __getitem__(self, i):
        self.threads.add(threading.current_thread().name)
        return self.bags[i]


def test_large_sets_are_read_ahead_in_another_thread_and_give_the_same_facts():
    bags = toy_bags(8)
    lazy = Lazy(bags)
    small, large = Feed(bags, CPU, memory_gb=1.0), Feed(lazy, CPU, memory_gb=0.0)
    assert small.facts.fingerprint == large.facts.fingerprint
    assert threading.current_thread().name not in lazy.threads
    steps = list(large.epoch(*rngs(9), rngs(3, 4)))
    assert len({tuple(s.bags) for s in steps}) == 8
    for step in steps:
        assert step.bags[0] == step.bags[1]  # one reading serves all runs
        assert step.features.shape[0] == 2
        assert step.features.stride(0) == 0  # expanded, not copied
        assert torch.equal(step.features[1], bags[step.bags[1]].features)
    scored = np.concatenate([s.bags for s in large.batches()])
    assert list(scored) == list(range(8))


def test_batches_for_scoring_hold_every_bag_once():
    bags = toy_bags(12)
    found = {}
    for step in Feed(bags, CPU, memory_gb=1.0).batches():
        for i, number in enumerate(step.bags):
            assert torch.equal(step.features[i], bags[number].features)
            found[int(number)] = True
    assert sorted(found) == list(range(12))


def test_read_ahead_keeps_the_order():
    bags = toy_bags(5)
    assert [b.bag_id for b in read_ahead(bags, [3, 1, 4])] == ["toy/3", "toy/1", "toy/4"]


def changed(bag, **values):
    fields = {
        "features": bag.features,
        "coords": bag.coords,
        "unit": bag.unit,
        "bag_id": bag.bag_id,
        "label": bag.label,
    }
    return Bag(**{**fields, **values})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": None}, "'toy/2' has no label"),
        ({"unit": "px"}, "coordinates in 'px', but 'toy/0' in 'um'"),
        ({"bag_id": "toy/0"}, "two training bags have the id 'toy/0'"),
        ({"features": torch.ones(5, 9)}, r"shape \(9,\) per instance"),
        ({"features": torch.full((5, 4), float("nan"))}, "5 of 5 instances have NaN"),
    ],
)
def test_bad_bags_are_named(change, message):
    bags = toy_bags(4, sizes=(5,))
    bags[2] = changed(bags[2], **change)
    with pytest.raises(DataError, match=message):
        Feed(bags, CPU, memory_gb=1.0)


def test_fingerprint_follows_the_content():
    bags = toy_bags(4)
    first = Feed(bags, CPU, memory_gb=1.0).facts.fingerprint
    assert Feed(toy_bags(4), CPU, memory_gb=1.0).facts.fingerprint == first
    bags[1] = changed(bags[1], coords=bags[1].coords + 1)
    assert Feed(bags, CPU, memory_gb=1.0).facts.fingerprint != first

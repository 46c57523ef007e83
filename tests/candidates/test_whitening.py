"""Directions within bags: right where theory says so, blind to stain, and unit variance."""

import numpy as np
import torch

from dasmil.candidates.whitening import FEWEST, Sample, WhitenedBags
from dasmil.types import Bag
from tests.baselines.rare_pairs import BACKGROUND, rare_pairs


def directions(bags):
    sample = Sample()
    for bag in bags:
        sample.add(bag)
    return sample.directions()


def test_directions_have_unit_variance_within_bags():
    bags = rare_pairs(12)
    found = directions(bags)
    x = torch.cat([(z := found.read(bag.features)) - z.mean(0) for bag in bags])[:, : found.within].double()
    variance = x.square().sum(0) / (len(x) - len(bags))
    torch.testing.assert_close(variance, torch.ones(found.within, dtype=torch.float64), rtol=0, atol=0.15)


def test_types_stand_out_whatever_the_noise():
    """Rare tiles lie far out on an axis of their own; noise twenty times as large does not hide them."""
    rng = np.random.default_rng(0)
    loud = torch.from_numpy(np.linspace(20, 1, 96)).float()
    bags = []
    for number in range(30):
        features = torch.from_numpy(rng.standard_normal((300, 96))).float() * loud
        features[:6, 60:] += 4.0
        bags.append(Bag(features, torch.rand(300, 2), "um", str(number), label=number % 2))
    found = directions(bags)
    assert len(found.places) >= 1
    y = torch.stack([found.read(bag.features)[:, 0] for bag in bags])
    assert float((y[:, :6] > found.limits[0]).float().mean()) > 0.95
    assert float((y[:, 6:] > found.limits[0]).float().mean()) < 0.01


def test_as_many_directions_as_stand_out_of_noise():
    # Six types span five directions; noise of the same size in every feature adds none.
    loud = directions(rare_pairs(40, separation=3.0))
    assert loud.within == FEWEST >= BACKGROUND + 1
    rng = np.random.default_rng(0)
    basis = rng.standard_normal((12, 96))
    bags = [
        Bag(torch.from_numpy(5 * rng.standard_normal((200, 12)) @ basis + rng.standard_normal((200, 96))).float(),
            torch.rand(200, 2), "um", str(i), label=i % 2)
        for i in range(20)
    ]  # fmt: skip
    assert directions(bags).within == 12


def test_a_shift_of_whole_slides_does_not_turn_the_directions_within_them():
    plain, stained = rare_pairs(20, shift=0.0, separation=2.0), rare_pairs(20, shift=20.0, separation=2.0)
    a, b = (directions(bags) for bags in (plain, stained))
    q = [torch.linalg.qr(d.axes[:, : d.within].double())[0] for d in (a, b)]
    assert (torch.linalg.svdvals(q[0].T @ q[1]) > 0.99).sum() >= BACKGROUND + 1


def test_equal_instances_and_single_ones_are_read_without_nan():
    same = [Bag(torch.ones(3, 5), torch.rand(3, 2), "um", str(i), label=i % 2) for i in range(4)]
    single = [Bag(torch.randn(1, 5), torch.rand(1, 2), "um", str(i), label=i % 2) for i in range(6)]
    for bags in (same, single):
        read = WhitenedBags(bags, directions(bags))
        assert all(torch.isfinite(bag.features).all() and bag.features.shape[1] >= 1 for bag in read)

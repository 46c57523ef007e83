"""The scan for pairs of types: distances by brute force, and the planted pair among all others."""

import numpy as np
import pytest
import torch

from dasmil.baselines.prototypes import nearest_distances, type_pairs
from dasmil.baselines.relations import find_relations, separating_length
from dasmil.baselines.whitening import Sample, WhitenedBags
from dasmil.types import Bag
from tests.baselines.rare_pairs import rare_pairs


@pytest.mark.parametrize("sections", [False, True])
def test_nearest_distances_are_those_of_all_pairs(sections):
    rng = np.random.default_rng(1)
    kinds = rng.integers(0, 3, 60)
    section = torch.from_numpy(rng.integers(0, 2, 60)) if sections else None
    bag = Bag(torch.zeros(60, 1), 1000 * torch.rand(60, 2), "um", "b", section=section)
    places = bag.coords.double().numpy()
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    if section is not None:
        apart[section.numpy()[:, None] != section.numpy()[None]] = np.inf
    wanted = [apart[np.ix_(kinds == a, kinds == b)].min() for a, b in type_pairs(4) if b < 3]
    found = nearest_distances(bag, kinds, 4)
    np.testing.assert_allclose([d for d, (a, b) in zip(found, type_pairs(4)) if b < 3], wanted, rtol=1e-6)
    assert all(d > 5 * 1000 for d, (a, b) in zip(found, type_pairs(4)) if b == 3)  # a type that is not there


def test_the_length_lies_in_the_gap():
    distances = np.array([100.0, 200, 390, 520, 900, 1000])
    near = np.array([True, True, True, False, False, False])
    assert 390 < separating_length(distances, near) < 520


def test_the_planted_pair_is_found_and_holds_on_other_slides():
    bags, others = rare_pairs(40), rare_pairs(40, seed=1)
    sample = Sample()
    for bag in bags:
        sample.add(bag)
    directions = sample.directions()
    labels = np.array([bag.label for bag in bags])
    best = find_relations(list(WhitenedBags(bags, directions)), labels, directions.within, most=6)[0]
    assert best.auroc == 1.0
    assert best.near_is == 1
    assert 360 < best.length < 572  # 400 to 520 um tells the classes apart
    # On slides that were not scanned: how near the two centres' own tiles come.
    smallest = []
    for bag in WhitenedBags(others, directions):
        x = bag.features[:, : directions.within].numpy()
        own = [
            np.flatnonzero(np.linalg.norm(x - c, axis=1) < 0.5 * np.linalg.norm(c)) for c in (best.first, best.second)
        ]
        a, b = (bag.coords.numpy()[i] for i in own)
        smallest.append(np.linalg.norm(a[:, None] - b[None], axis=-1).min())
    assert all((d < best.length) == bool(bag.label) for d, bag in zip(smallest, others))

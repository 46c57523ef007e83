"""Rules that DAS-MIL begins from: the pair that decides, and the range of its length."""

import numpy as np
import pytest
import torch

from dasmil.candidates.folds import patient_folds
from dasmil.candidates.objective import Classes
from dasmil.candidates.rules import rule_outputs, scan_bags, usual_lengths, usual_reach
from dasmil.candidates.whitening import Sample
from dasmil.stats import auroc
from dasmil.types import Bag


def cohort(within: float, beyond: float, count: int = 48) -> list[Bag]:
    """A grid of 64 um; one instance of each of two rare types lies within a length of the other, or beyond another."""
    rng = np.random.default_rng(0)
    grid = 64.0 * np.stack(np.meshgrid(np.arange(16), np.arange(16)), -1).reshape(-1, 2)
    bags = []
    for number in range(count):
        label = number % 2
        while True:
            first = int(rng.integers(256))
            distance = np.sqrt(np.square(grid - grid[first]).sum(1))
            near = np.flatnonzero((distance > 0) & (distance <= within) if label else distance > beyond)
            if len(near):
                break
        x = rng.normal(size=(256, 8))
        x[first, 0] += 12
        x[int(rng.choice(near)), 1] += 12
        bags.append(Bag(torch.from_numpy(x).float(), torch.from_numpy(grid).float(), "um", f"b{number}", label=label))
    return bags


@pytest.mark.parametrize(("within", "beyond"), [(200.0, 400.0), (70.0, 70.0)])
def test_the_pair_that_decides_is_found_with_its_length(within: float, beyond: float) -> None:
    bags = cohort(within, beyond)
    sample = Sample()
    for bag in bags:
        sample.add(bag)
    directions = sample.directions()
    read = [Bag(directions.read(bag.features), bag.coords, "um", bag.bag_id, label=bag.label) for bag in bags]
    near = scan_bags(read, directions).kinds["near"]
    assert near.values.min() >= 64
    assert near.values.max() <= 15 * 64
    objective = Classes(np.array([bag.label for bag in bags]), 2)
    patients = [bag.bag_id for bag in bags]
    rules, outputs = rule_outputs(near, objective, patients, patient_folds(objective, patients))
    assert auroc(outputs[:, 0], objective.labels == 1)[0] > 0.9
    assert all(64 <= rule.length <= 15 * 64 for rule in rules)
    assert np.median([rule.length for rule in rules]) == pytest.approx(np.sqrt(within * beyond), rel=0.3)


def test_lengths_lie_between_neighbours_and_a_quarter_of_the_section() -> None:
    bags = cohort(200.0, 400.0, 4)
    assert usual_reach(bags) == (64.0, 15 * 64.0)
    lengths = usual_lengths(bags, 4)
    np.testing.assert_allclose(lengths[[0, -1]], [96, 240])

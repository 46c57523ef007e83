"""The scan for shares and pairs of types: numbers by brute force, the planted rule among all others, honest folds."""

import numpy as np
import pytest
import torch

from dasmil.baselines.question import Classes
from dasmil.baselines.rules import cross_fitted, find_rules, parting_value, scan_bags
from dasmil.candidates.types_of_instances import nearest_distances, shares_within, type_pairs
from dasmil.candidates.whitening import Sample, WhitenedBags
from dasmil.stats import auroc
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
    np.fill_diagonal(apart, np.inf)  # an instance is no pair with itself
    wanted = [apart[np.ix_(kinds == a, kinds == b)].min() for a, b in type_pairs(4) if b < 3]
    found = nearest_distances(bag, kinds, 4)
    np.testing.assert_allclose([d for d, (a, b) in zip(found, type_pairs(4)) if b < 3], wanted, rtol=1e-6)
    assert all(d > 5 * 1000 for d, (a, b) in zip(found, type_pairs(4)) if b == 3)  # a type that is not there


def test_shares_within_a_length_are_counted():
    """Against all pairs: instances of any type and of each that have one of another type within a length."""
    rng = np.random.default_rng(0)
    kinds, section = rng.integers(0, 3, 60), torch.from_numpy(np.arange(60) % 2)
    bag = Bag(torch.zeros(60, 1), 100 * torch.from_numpy(rng.random((60, 2))).float(), "um", "b", section=section)
    members = [np.flatnonzero(kinds == kind) for kind in range(3)]
    lengths = np.array([5.0, 20.0])
    apart = torch.cdist(bag.coords, bag.coords).numpy()
    apart[np.equal.outer(section.numpy(), section.numpy()) == 0] = np.inf  # no distance between sections
    np.fill_diagonal(apart, np.inf)  # nobody is near itself
    expected = [
        ((kinds == first if first >= 0 else np.ones(60, bool)) & (apart[:, kinds == second].min(1) <= length)).mean()
        for first in (-1, 0, 1, 2) for second in range(3) if first != second for length in lengths
    ]  # fmt: skip
    assert shares_within(bag, members, lengths) == pytest.approx(np.array(expected), abs=1e-6)
    assert len(set(expected)) > 8


def test_the_value_lies_in_the_gap():
    distances = np.array([100.0, 200, 390, 520, 900, 1000])
    near = np.array([True, True, True, False, False, False])
    assert 390 < parting_value(distances, Classes(near.astype(int)).residuals) < 520


def scanned(bags):
    sample = Sample()
    for bag in bags:
        sample.add(bag)
    directions = sample.directions()
    return scan_bags(list(WhitenedBags(bags, directions)), directions), directions


def test_the_planted_pair_is_found_and_holds_on_other_slides():
    bags, others = rare_pairs(40), rare_pairs(40, seed=1)
    scan, directions = scanned(bags)
    labels, patients = np.array([bag.label for bag in bags]), [bag.bag_id for bag in bags]
    share, near, within = find_rules(scan, Classes(labels), patients, most=6)
    assert (share.kind, near.kind, within.kind) == ("share", "near", "within")
    assert auroc(share.said, labels == 1)[0] < 0.75  # both classes have as many of every type
    assert auroc(near.said, labels == 1)[0] > 0.98  # of slides that did not choose the pair
    best = near.rules[0]
    assert best.score == 1.0
    assert 360 < best.value < 572  # 400 to 520 um tells the classes apart
    # On slides that were not scanned: how near the two places' own tiles come.
    smallest = []
    for bag in WhitenedBags(others, directions):
        x = bag.features[:, : directions.within].numpy()
        own = [np.flatnonzero(x @ weights + constant > 0.5) for weights, constant in (t.reading for t in best.types)]
        a, b = (bag.coords.numpy()[i] for i in own)
        smallest.append(np.linalg.norm(a[:, None] - b[None], axis=-1).min())
    assert np.mean([(d < best.value) == bool(bag.label) for d, bag in zip(smallest, others)]) > 0.95


def test_a_type_is_read_as_one_and_all_others_as_nothing_however_common_it_is():
    """One-hot types of which one is six in ten: a projection on its place alone reads the others as -1.5."""
    rng = np.random.default_rng(0)
    shares = [0.6, 0.15, 0.2, 0.05]
    bags = [
        Bag(torch.eye(4)[torch.from_numpy(rng.choice(4, 80, p=shares))], 100 * torch.rand(80, 2), "um", str(number))
        for number in range(40)
    ]
    scan, directions = scanned(bags)
    singles = next(kind for kind in scan.kinds if kind.kind == "share").types[:4]  # the centres of the first k-means
    found = {}
    for kind, _, _ in singles:
        weights, constant = kind.reading
        values = directions.read(torch.eye(4))[:, : directions.within].numpy() @ weights + constant
        own = int(values.argmax())
        found[own] = kind.share
        assert values[own] == pytest.approx(1.0, abs=0.01)
        assert np.delete(values, own) == pytest.approx(0.0, abs=0.25)
    assert [found[i] for i in range(4)] == pytest.approx(shares, abs=0.03)


def test_folds_are_honest_about_the_best_of_many_numbers():
    """The best of 500 blind numbers looks good on the bags that chose it, and is worth nothing on others."""
    rng = np.random.default_rng(0)
    labels, patients = np.arange(60) % 2, [str(i) for i in range(60)]
    scores = []
    for _ in range(5):
        columns = rng.standard_normal((60, 500))
        assert np.abs(Classes(labels).scores(columns) - 0.5).max() > 0.2
        scores.append(auroc(cross_fitted(columns, Classes(labels), patients), labels == 1)[0])
    assert abs(np.mean(scores) - 0.5) < 0.12


def test_folds_keep_the_bags_of_a_patient_together():
    """A number that only names the patient tells nothing about other patients."""
    labels = np.repeat(np.arange(20) % 2, 4)
    patients = [str(i) for i in np.repeat(np.arange(20), 4)]
    own = np.repeat(np.random.default_rng(1).standard_normal((20, 200)), 4, axis=0)
    apart = auroc(cross_fitted(own, Classes(labels), patients), labels == 1)[0]
    mixed = auroc(cross_fitted(own, Classes(labels), [str(i) for i in range(80)]), labels == 1)[0]
    assert mixed > apart + 0.1

"""The baselines: each finds what it can see and nothing else, from training bags alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dasmil.baselines import BASELINES, fit_baselines
from dasmil.baselines.rivals import MOST_FEATURES, _Reader, as_vectors
from dasmil.errors import InputError
from dasmil.stats import auroc
from dasmil.types import Bag
from tests.baselines.compositions import compositions
from tests.baselines.rare_pairs import rare_pairs


def scores(found, bags):
    positive = np.array([bag.label for bag in bags]) == 1
    return {name: float(auroc(p, positive)[0]) for name, p in found.items()}


def test_pair_distances_find_what_composition_cannot():
    test = rare_pairs(30, seed=1)
    found = scores(fit_baselines(rare_pairs(50)).predict(test), test)
    assert list(found) == list(BASELINES)
    assert found["pairs"] > 0.9
    assert found["composition"] < 0.75
    assert found["mean"] < 0.75


def test_composition_is_found_where_it_decides():
    test = compositions(40, seed=1)
    found = scores(fit_baselines(compositions(40)).predict(test), test)
    assert found["composition"] > 0.9
    assert found["mean"] > 0.9


def test_labels_without_meaning_are_not_found():
    test = compositions(60, seed=1, blind=True)
    found = scores(fit_baselines(compositions(40, blind=True)).predict(test), test)
    assert all(0.3 < value < 0.7 for value in found.values())


def test_other_bags_change_nothing_and_equal_bags_give_equal_answers():
    train, test = compositions(24), compositions(10, seed=1)
    fitted = fit_baselines(train)
    alone = [fitted.predict([bag]) for bag in test]
    together, again = fitted.predict(test), fit_baselines(train).predict(test)
    for name in BASELINES:
        np.testing.assert_allclose([one[name][0] for one in alone], together[name], rtol=0, atol=1e-12)
        np.testing.assert_array_equal(together[name], again[name])


def test_three_classes_have_a_probability_each():
    test = compositions(30, seed=1, classes=3)
    found = fit_baselines(compositions(30, classes=3)).predict(test)
    labels = np.array([bag.label for bag in test])
    for name, p in found.items():
        assert p.shape == (30, 3)
        np.testing.assert_allclose(p.sum(1), 1, atol=1e-9)
        if name != "pairs":
            assert (p.argmax(1) == labels).mean() > 0.75


def test_a_class_that_training_bags_lack_has_probability_zero():
    found = fit_baselines(compositions(12), classes=3).predict(compositions(2, seed=1))
    assert all((p[:, 2] == 0).all() for p in found.values())


def test_instances_of_different_sections_are_not_near():
    """Two types that only come near across sections are as far apart as types that never meet."""

    def bag(name: str, near: bool, label: int) -> Bag:
        features = torch.eye(3)[torch.tensor([0] * 10 + [1] * 10 + [2] * 10)] + 0.01 * torch.randn(30, 3)
        coords = torch.rand(30, 2) * 10
        section = torch.zeros(30, dtype=torch.long)
        section[10:20] = 0 if near else 1
        return Bag(features, coords, "um", name, label=label, section=section)

    torch.manual_seed(0)
    bags = [bag(f"b{i}", i % 2 == 1, i % 2) for i in range(20)]
    numbers = _Reader.fitted(bags, 0).numbers(bags)
    near, far = numbers["pairs"][1], numbers["pairs"][0]
    assert (far > near + 1).any()
    found = fit_baselines(bags).predict(bags)["pairs"]
    assert found[1::2].min() > found[::2].max()


@pytest.mark.parametrize("width", [1, 2, MOST_FEATURES + 500])
def test_features_of_any_length(width):
    rng = torch.Generator().manual_seed(0)
    bags = [
        Bag(torch.randn(12, width, generator=rng) + i % 2, torch.rand(12, 2), "um", str(i), label=i % 2)
        for i in range(16)
    ]
    found = scores(fit_baselines(bags[:8]).predict(bags[8:]), bags[8:])
    assert found["mean"] == 1.0


def test_what_cannot_be_fitted_is_said():
    bags = compositions(4)
    with pytest.raises(InputError, match="'s0-1' has no label"):
        fit_baselines([bags[0], replace(bags[1], label=None)])
    with pytest.raises(InputError, match="expected at least two"):
        fit_baselines(bags[::2])
    with pytest.raises(InputError, match="3 labels for 4 bags"):
        fit_baselines(bags, [0, 1, 0])
    with pytest.raises(InputError, match="has the label 2, expected 0 to 1"):
        fit_baselines(bags, [0, 1, 2, 0], classes=2)
    strange = [replace(bag, features=torch.zeros(80, 4, 4)) for bag in bags]
    with pytest.raises(InputError, match=r"instances of shape \(4, 4\): baselines read vectors and pictures"):
        fit_baselines(strange)


def test_pictures_are_told_by_their_colours():
    """Of each channel mean, spread and mean of the middle; the middle of these is one brighter than the rest."""
    pixels = torch.zeros(2, 3, 8, 8)
    pixels[:, :, 2:6, 2:6] = 1.0
    pixels[1, 2] += 4.0
    place = torch.zeros(2, 2)
    found = as_vectors(Bag(pixels, place, "um", "p")).features
    share = 16 / 64
    spread = (share * (1 - share)) ** 0.5
    expected = [[share] * 3 + [spread] * 3 + [1.0] * 3, [share] * 2 + [share + 4] + [spread] * 3 + [1.0, 1.0, 5.0]]
    torch.testing.assert_close(found, torch.tensor(expected))
    vectors = Bag(torch.ones(2, 5), place, "um", "v")
    assert as_vectors(vectors) is vectors

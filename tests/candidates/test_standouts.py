"""Rare types of instances are found where principal components are blind, and nothing is found in noise."""

import numpy as np

from dasmil.candidates.standouts import find_standouts


def noise(rows, columns, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def halves(rows):
    return np.arange(rows) % 2 == 0


def test_a_rare_type_is_found_with_its_place_and_members():
    x = noise(8000, 60)
    towards = noise(1, 60, seed=1)[0]
    towards /= np.linalg.norm(towards)
    rare = np.random.default_rng(2).random(8000) < 0.01
    x[rare] += 8 * towards
    x = (x - x.mean(0)) / np.sqrt(1 + 0.01 * 64 * towards**2)  # about variance one in every direction
    found = find_standouts(x.astype(np.float32), halves(8000))
    assert len(found) == 1
    assert float(found.axes[:, 0] @ towards) > 0.97
    y = x @ found.axes[:, 0]
    assert abs(found.places[0] - y[rare].mean()) < 1.5
    assert np.mean((y > found.limits[0]) == rare) > 0.998


def test_several_types_have_a_direction_each():
    x, rng = noise(12000, 40), np.random.default_rng(3)
    kinds = rng.choice(4, 12000, p=[0.7, 0.2, 0.08, 0.02])
    means = 6 * np.linalg.qr(noise(40, 4, seed=4))[0].T
    x += means[kinds].astype(np.float32)
    covariance = np.cov(x.T)
    values, vectors = np.linalg.eigh(covariance)
    x = ((x - x.mean(0)) @ (vectors / np.sqrt(values))).astype(np.float32)
    found = find_standouts(x, halves(12000))
    y = x @ found.axes
    for kind in (1, 2, 3):
        apart = (y[kinds == kind].mean(0) - y[kinds != kind].mean(0)) / y[kinds != kind].std(0)
        assert apart.max() > 4


def test_noise_has_none_and_few_instances_tell_nothing():
    assert len(find_standouts(noise(6000, 50), halves(6000))) == 0
    assert len(find_standouts(noise(300, 10), halves(300))) == 0


def test_what_only_the_searched_half_shows_is_not_taken():
    x = noise(4000, 30)
    x[0] += 60.0  # one broken instance
    assert len(find_standouts(x, halves(4000))) == 0

"""Contacts, their expectation under random types, and the classical statistics, against plain loops over all pairs."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from dasmil.space import Section, length_grid, type_pairs
from dasmil.space.classical import cross_g, cross_l, enrichment, envelope, moran
from dasmil.space.contacts import chance_of_pairs, count_contacts, count_section, find_shells
from dasmil.space.made import made_section, plant

LENGTHS = np.array([20.0, 45.0, 100.0])


@pytest.fixture(scope="module")
def section() -> Section:
    return made_section("one", "p", np.array([0.5, 0.3, 0.2]), 90, np.random.default_rng(3), side=300.0, patches=4)


def distances(section: Section) -> np.ndarray:
    gap = np.linalg.norm(section.coords[:, None] - section.coords[None], axis=2)
    np.fill_diagonal(gap, np.inf)
    return gap


def test_contacts_are_those_of_a_loop_over_all_pairs(section: Section) -> None:
    near, kinds = distances(section), section.kinds
    counted = count_section(section, find_shells(section.coords, LENGTHS), 3, 5, 0)
    for at, length in enumerate(LENGTHS):
        for k, (a, b) in enumerate(type_pairs(3)):
            pairs = (near <= length)[np.ix_(kinds == a, kinds == b)].sum() / (2 if a == b else 1)
            assert counted.contacts[0, at, k] == pairs
    assert counted.contacts[1:, -1].sum(1) == pytest.approx(counted.contacts[0, -1].sum())  # pairs stay, types move
    assert counted.expected.sum(1) == pytest.approx(counted.contacts[0].sum(1))


def test_expected_contacts_are_the_mean_over_all_ways_to_deal_out_types() -> None:
    rng = np.random.default_rng(0)
    coords, kinds = rng.uniform(0, 50, (6, 2)), np.array([0, 0, 1, 1, 1, 2])
    shells = find_shells(coords, LENGTHS)
    every = np.mean([count_contacts(shells, np.array(p), 3) for p in set(permutations(kinds.tolist()))], axis=0)
    expected = count_section(Section("s", "p", coords, kinds), shells, 3, 0, 0).expected
    assert np.cumsum(every, axis=0) == pytest.approx(expected)
    assert chance_of_pairs(np.array([2.0, 3, 1])).sum() == pytest.approx(1.0)


def test_shells_of_random_instances_stand_for_all_pairs(section: Section) -> None:
    whole = count_contacts(find_shells(section.coords, LENGTHS), section.kinds, 3)
    thinned = [find_shells(section.coords, LENGTHS, seed, most=150) for seed in range(60)]
    assert thinned[0].share[-1] < 0.5
    assert len(thinned[0].first) < whole.sum()
    ends = np.sort(np.stack([thinned[0].first, thinned[0].second]), axis=0)
    assert len(np.unique(ends, axis=1).T) == ends.shape[1]  # no pair twice
    mean = np.mean([count_contacts(shells, section.kinds, 3) for shells in thinned], axis=0)
    assert mean == pytest.approx(whole, rel=0.15, abs=3.0)


def test_lengths_begin_beyond_the_spacing_of_a_grid_of_tiles() -> None:
    grid = np.stack(np.meshgrid(np.arange(20.0), np.arange(20.0)), -1).reshape(-1, 2) * 256
    lengths = length_grid([Section("s", "p", grid, np.zeros(400, np.int64))])
    assert 256 < lengths[0] < 256 * 1.4
    assert lengths[-1] == pytest.approx(19 * 256 / 4)
    assert np.ptp(np.diff(np.log(lengths))) == pytest.approx(0, abs=1e-9)


def test_cross_l_g_and_moran_are_their_definitions(section: Section) -> None:
    near, kinds, sides = distances(section), section.kinds, np.ptp(section.coords, axis=0)
    gap = np.abs(section.coords[:, None] - section.coords[None])
    weight = 1 / np.prod(1 - gap / sides, axis=2, where=gap < sides)
    shells = find_shells(section.coords, LENGTHS)
    found_l, found_g = cross_l(section, shells, 3), cross_g(section, LENGTHS, 3)
    found_i = moran(count_section(section, shells, 3, 0, 0).contacts[0].astype(float), np.bincount(kinds).astype(float))
    for at, length in enumerate(LENGTHS):
        inside = near <= length
        for k, (a, b) in enumerate(type_pairs(3)):
            own = np.ix_(kinds == a, kinds == b)
            possible = (kinds == a).sum() * ((kinds == b).sum() - int(a == b))
            ripley = np.prod(sides) * (weight * inside)[own].sum() / possible
            assert found_l[at, k] == pytest.approx(np.sqrt(ripley / np.pi))
            assert found_g[at, a, b] == pytest.approx(inside[own].any(1).mean())
        for a in range(3):
            z = (kinds == a) - (kinds == a).mean()
            classic = len(z) / inside.sum() * (z @ inside @ z) / (z @ z)
            assert found_i[at, a] == pytest.approx(classic)


def test_l_of_random_points_is_the_length() -> None:
    rng = np.random.default_rng(1)
    values = []
    for _ in range(20):
        one = made_section("s", "p", np.array([0.5, 0.5]), 200, rng, side=400.0)
        values.append(cross_l(one, find_shells(one.coords, LENGTHS), 2))
    assert np.mean(values, axis=0) == pytest.approx(np.repeat(LENGTHS[:, None], 3, axis=1), rel=0.05)


def test_enrichment_and_envelope_see_a_planted_pair(section: Section) -> None:
    rng = np.random.default_rng(2)
    random = made_section("s", "p", np.array([0.4, 0.3, 0.3]), 300, rng, side=500.0)
    planted = Section("s", "p", random.coords, plant(random, 0, 1, 20.0, 0.4, rng))
    assert (np.bincount(planted.kinds) == np.bincount(random.kinds)).all()
    contacts = count_section(planted, find_shells(planted.coords, LENGTHS), 3, 99, 0).contacts.astype(float)
    place = type_pairs(3).index((0, 1))
    assert enrichment(contacts)[0, place] > 4
    assert envelope(contacts)[0, place] == 1

"""Who is near whom: against all distances, and where many instances lie at one place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dasmil.errors import InputError
from dasmil.nn import neighbours
from dasmil.nn.neighbours import nearest, pairs_within


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many instances each tree was made of."""
    sizes: list[int] = []
    tree = neighbours.KDTree

    def counted(places: np.ndarray) -> object:
        sizes.append(len(places))
        return tree(places)

    monkeypatch.setattr(neighbours, "KDTree", counted)
    return sizes


def test_nearest_where_instances_share_places_against_all_distances() -> None:
    """Ties may be cut anywhere, so the distances are compared, and that nobody is named twice."""
    generator = torch.Generator().manual_seed(0)
    coords = torch.randint(0, 4, (300, 2), generator=generator).double()
    coords[:150] = coords[0]  # half of them at one place
    section = torch.arange(300) % 3
    for k in (1, 5, 40):
        found = nearest(coords, k, section)
        assert (found[:, 0] == torch.arange(300)).all()
        for i in range(300):
            same = torch.where(section == section[i], torch.cdist(coords[i : i + 1], coords)[0], torch.inf)
            expected = same.sort().values[:k]
            torch.testing.assert_close(same[found[i]].sort().values, expected)
            assert len(set(found[i].tolist())) == k


def test_a_tree_of_instances_at_one_place_stays_small(trees: list[int]) -> None:
    """It had looked at all pairs: 2.3 s of computing for 50,000 instances, and the square of that for more."""
    found = nearest(torch.ones(1_000_000, 2), 9)
    assert trees == [9]
    assert (found[:, 0] == torch.arange(1_000_000)).all()
    assert (found[:, 1:] != found[:, :1]).all()


def test_pairs_that_share_a_place_are_counted_before_a_tree_is_made(trees: list[int]) -> None:
    with pytest.raises(InputError, match="499,999,500,000 pairs of the 1,000,000 instances share a place, expected"):
        pairs_within(torch.ones(1_000_000, 2), 1.0)
    assert trees == []
    pairs = pairs_within(torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 0.0], [0.0, 1.0]]), 1.0)
    assert sorted(pairs.T.tolist()) == [[0, 2], [0, 3], [2, 0], [2, 3], [3, 0], [3, 2]]

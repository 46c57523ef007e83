"""Instances on a grid of cells: where they lie, which cells are found, and who hears whom."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dasmil import create_model
from dasmil.errors import InputError
from dasmil.nn.cells import Occupancy, cells_of, find_cells


def test_cells_are_whole_tiles_from_the_corner() -> None:
    coords = torch.tensor([[105.0, 50.0], [125.4, 50.0], [164.0, 71.0], [105.0, 109.0]])
    assert cells_of(coords, 20.0, None, 1).tolist() == [[0, 0], [1, 0], [3, 1], [0, 3]]
    assert torch.equal(cells_of(coords + 7.3, 20.0, None, 1), cells_of(coords, 20.0, None, 1))


def test_sections_lie_side_by_side_with_a_window_between_them() -> None:
    coords = torch.tensor([[0.0, 0.0], [40.0, 0.0], [900.0, 900.0], [910.0, 900.0]])
    found = cells_of(coords, 10.0, torch.tensor([5, 5, 2, 2]), 3)
    assert found.tolist() == [[6, 0], [10, 0], [0, 0], [1, 0]]


def test_instances_in_one_cell_are_averaged_and_share_its_weight() -> None:
    occupied = Occupancy(torch.tensor([[2, 1], [0, 4], [2, 1]]))
    assert occupied.cells.tolist() == [[0, 4], [2, 1]]
    x = torch.tensor([[1.0, 2.0], [5.0, 6.0], [3.0, 8.0]])
    assert occupied.mean(x).tolist() == [[5.0, 6.0], [2.0, 5.0]]
    assert occupied.shared(torch.tensor([0.4, 0.6])).tolist() == pytest.approx([0.3, 0.4, 0.3])


def test_cells_are_found_also_where_they_lie_far_apart() -> None:
    known = torch.tensor([[0, 7], [2, -3], [2, 10**15], [10**15, 7]])
    wanted = torch.tensor([[[2, 10**15], [2, 7]], [[0, 7], [10**15, -3]]])
    assert find_cells(known, wanted).tolist() == [[2, -1], [0, -1]]


def test_blocks_do_not_cross_sections() -> None:
    torch.manual_seed(0)
    model: Any = create_model("gabmil", in_features=4, features=8, hidden=4, tile=10.0).double().eval()
    features = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    coords = torch.tensor([[0.0, 0.0], [10.0, 0.0], [20.0, 0.0], [10.0, 10.0]])

    def heard(section: torch.Tensor | None) -> list[bool]:
        (gradient,) = torch.autograd.grad(model.aggregator.mixed(features, coords, section)[0].sum(), features)
        return (gradient.abs().sum(-1) > 0).tolist()

    assert heard(None) == [True, True, True, True]
    assert heard(torch.tensor([0, 0, 1, 1])) == [True, True, False, False]


def test_a_plane_is_needed() -> None:
    model = create_model("gabmil", in_features=4, features=8, hidden=4, tile=10.0)
    with pytest.raises(InputError, match="coords have 3 numbers for an instance"):
        model(torch.randn(5, 4), torch.randn(5, 3))

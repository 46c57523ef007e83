"""Bags validate themselves, with messages that name the bag."""

import numpy as np
import pytest
import torch

from dasmil.errors import DataError
from dasmil.types import Bag


def make(**changes: object) -> Bag:
    fields: dict = {"features": torch.ones(3, 4), "coords": torch.zeros(3, 2), "unit": "um", "bag_id": "slide-7"}
    return Bag(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"coords": torch.zeros(2, 2)}, "3 rows of features but 2 of coords"),
        ({"coords": torch.tensor([[0.0, 0.0], [float("nan"), 1.0], [2.0, float("inf")]])}, "2 of 3 instances have NaN"),
        ({"coords": torch.zeros(3, 4)}, r"coords have shape \(3, 4\)"),
        ({"features": torch.zeros(0, 4), "coords": torch.zeros(0, 2)}, "at least one instance"),
        ({"unit": "mm"}, "unit is 'mm'"),
        ({"label": -1}, "label is -1"),
        ({"section": torch.zeros(4)}, "3 rows of features but 4 of section"),
    ],
)
def test_a_broken_bag_is_refused_by_name(changes: dict, message: str) -> None:
    with pytest.raises(DataError, match=f"bag 'slide-7': .*{message}"):
        make(**changes)


def test_a_bag_needs_a_name() -> None:
    with pytest.raises(DataError, match="empty bag_id"):
        make(bag_id="")


def test_numpy_arrays_become_tensors_with_the_stated_types() -> None:
    bag = make(features=np.ones((3, 4), np.float16), coords=np.arange(6.0).reshape(3, 2), label=np.int64(1))
    assert bag.features.dtype == torch.float16
    assert bag.coords.dtype == torch.float32
    assert bag.coords.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert bag.label == 1
    assert len(bag) == 3


def test_names_that_no_table_can_hold_are_refused():
    for names in ({"bag_id": "a\udcff"}, {"bag_id": "a", "patient_id": "p\udcff"}):
        with pytest.raises(DataError, match="is not UTF-8 text, so no table can hold it"):
            Bag(torch.zeros(2, 3), torch.zeros(2, 2), "um", **names)


def test_masked_values_and_tensors_without_numbers_are_refused() -> None:
    values = np.arange(12.0).reshape(3, 4)
    for name, width in (("features", 4), ("coords", 2)):
        with pytest.raises(DataError, match=rf"{name} are masked \(2 values\): fill these values or remove"):
            make(**{name: np.ma.masked_array(values, values > 9)[:, -width:]})
        with pytest.raises(DataError, match=f"{name} are a meta tensor, which holds no numbers"):
            make(**{name: torch.empty(3, width, device="meta")})
    assert make(features=np.ma.masked_array(values)).features.tolist() == values.tolist()

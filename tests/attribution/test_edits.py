"""What if: edits as text, and that the edited bag is the one that somebody would have made by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dasmil.attribution import explain
from dasmil.attribution.edits import edited, read_edits
from dasmil.errors import InputError
from dasmil.models import create_model
from dasmil.types import Bag


def bag_of(n: int = 12) -> Bag:
    torch.manual_seed(3)
    return Bag(torch.randn(n, 5), torch.rand(n, 2) * 900, "um", "b", instance_labels=torch.arange(n) % 3)


def test_edits_are_applied_by_the_numbers_of_the_unedited_bag() -> None:
    bag = bag_of()
    after, numbers = edited(bag, read_edits("drop:0-1.5;move:2.11@100,-20.5;move:2@1,1", len(bag)))
    assert numbers.tolist() == [2, 3, 4, 6, 7, 8, 9, 10, 11]
    expected = bag.coords[numbers].clone()
    expected[0] += torch.tensor([101.0, -19.5])
    expected[-1] += torch.tensor([100.0, -20.5])
    torch.testing.assert_close(after.coords, expected)
    torch.testing.assert_close(after.features, bag.features[numbers])
    assert after.instance_labels is not None
    assert after.instance_labels.tolist() == [k % 3 for k in numbers]
    kept, numbers = edited(bag, read_edits("keep:3-8;drop:4", len(bag)))
    assert numbers.tolist() == [3, 5, 6, 7, 8]
    assert len(kept) == 5
    assert np.array_equal(edited(bag, read_edits("", len(bag)))[1], np.arange(12))


def test_the_logit_after_edits_is_that_of_the_model() -> None:
    bag = bag_of()
    model = create_model("das-mil", in_features=5, out_features=4, unit="um", distance_scale=200.0).eval()
    after, _ = edited(bag, read_edits("drop:0-3;move:7@250,0", len(bag)))
    coords = bag.coords[4:].clone()
    coords[3, 0] += 250
    with torch.no_grad():
        expected = float(model(bag.features[4:], coords).logit)
    found = explain(model, after)
    assert found.logit == pytest.approx(expected, abs=1e-5)
    assert float(found.contributions.sum()) + found.bias == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("burn:1", "expected for example drop"),
        ("drop:", "expected for example drop"),
        ("drop:1;move:2", "expected for example drop"),
        ("drop:1@5,5", "expected for example drop"),
        ("drop:5-2", "names the instances 5 to 2"),
        ("keep:12", "the bag has 0 to 11"),
        ("move:1@5", "expected x,y"),
        ("move:1@nan,1", "expected x,y"),
        ("drop:" + "1." * 20_000 + "1", "at most 30,000"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_edits(text, 12)


def test_edits_that_leave_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="leave no instance"):
        edited(bag_of(), read_edits("keep:1;drop:1", 12))

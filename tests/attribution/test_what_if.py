"""What-if: a model's answer for a part of a bag is its answer for a bag that never had the other instances."""

import pytest
import torch

from dasmil.attribution import explain
from dasmil.attribution.what_if import logit_of_part, what_if
from dasmil.errors import InputError
from dasmil.models import create_model
from dasmil.types import Bag

N = 9


def bag(keep=None):
    g = torch.Generator().manual_seed(5)
    features, coords = torch.randn(N, 4, generator=g), 300 * torch.rand(N, 2, generator=g)
    keep = torch.ones(N, dtype=torch.bool) if keep is None else keep
    return Bag(features[keep], coords[keep], "um", "a", section=(torch.arange(N) % 2)[keep])


def model(name, classes=2):
    torch.manual_seed(1)
    return create_model(name, in_features=4, n_classes=classes, distance_scale=100.0).double().eval()


@pytest.mark.parametrize("name", ["das-mil", "ab-mil", "mean-pool", "transmil"])
def test_a_part_is_the_bag_without_the_removed_instances(name):
    keep = torch.tensor([True, False, True, True, False, True, True, True, False])
    found = what_if(model(name), bag(), keep)
    alone = explain(model(name), bag(keep))
    assert found.logit == pytest.approx(alone.logit, abs=1e-12)
    assert torch.equal(found.contributions[keep], alone.contributions)
    assert torch.equal(found.contributions[~keep], torch.zeros(3, dtype=torch.float64))
    total = float(found.contributions.sum()) + found.bias + found.residual
    assert total == pytest.approx(found.logit, abs=1e-9)
    assert logit_of_part(model(name), bag(), keep) == pytest.approx(found.logit, abs=1e-9)
    assert abs(found.logit - explain(model(name), bag()).logit) > 1e-4  # the removed instances counted


def test_all_parts_of_a_bag_are_asked_about_the_class_of_the_whole_bag():
    three = model("ab-mil", 3)
    whole = explain(three, bag()).target
    asked = set()
    for i in range(N):
        keep = torch.arange(N) == i
        asked.add(what_if(three, bag(), keep).target)
        logits = three(bag(keep).features, bag(keep).coords, section=bag(keep).section).logit
        assert logit_of_part(three, bag(), keep, 2) == pytest.approx(logits[2].item())
    assert asked == {whole}


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (torch.zeros(N, dtype=torch.bool), "removes all 9 instances"),
        (torch.ones(N - 1, dtype=torch.bool), "expected 9 booleans"),
        (torch.ones(N), "float32"),
    ],
)
def test_a_wrong_mask_is_refused(keep, message):
    with pytest.raises(InputError, match=message):
        what_if(model("mean-pool"), bag(), keep)

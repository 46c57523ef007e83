"""Scores against known key instances."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dasmil.attribution.key_instances import ABSOLUTE, GRADIENTS, bag_aurocs, key_scores, usable
from dasmil.errors import DataError
from dasmil.models import create_model
from dasmil.types import Bag


def bags(n=12):
    """Instances with the first feature set are key; label 1 where there is one."""
    g = torch.Generator().manual_seed(0)
    found = []
    for k in range(n):
        features = 0.1 * torch.rand(7, 4, generator=g)
        key = torch.zeros(7, dtype=torch.bool)
        if k % 2:
            key[k % 7] = True
            features[key, 0] = 5.0
        found.append(Bag(features, torch.rand(7, 2, generator=g), "um", f"{k}", label=k % 2, key_instances=key))
    return found


def test_a_model_that_looks_at_the_key_feature_finds_the_key_instances():
    m = create_model("max-pool", in_features=4).eval()
    with torch.no_grad():
        m.classifier.weight.copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    rows = {r.score: r for r in key_scores("right", [m, m], bags(), gradient_bags=3)}
    assert rows["contribution"].seeds == (1.0, 1.0)
    assert rows["contribution"].n_bags == 6
    assert rows[GRADIENTS].n_bags == 3
    assert rows[GRADIENTS].mean == 1.0
    with torch.no_grad():
        m.classifier.weight.neg_()
    wrong = {r.score: r.mean for r in key_scores("wrong", [m], bags())}
    assert wrong["contribution"] == 0.0
    assert wrong[ABSOLUTE] == 1.0


def test_every_kind_of_model_is_scored():
    torch.manual_seed(0)
    for name in ("das-mil", "ab-mil", "gcn"):
        m = create_model(name, in_features=4).eval()
        found = bag_aurocs(m, usable(bags()), gradient_bags=2)
        assert GRADIENTS in found
        assert all(((v >= 0) & (v <= 1)).all() for v in found.values())
        assert ("support" in found) == (name == "das-mil")
        assert ("attention" in found) == (name != "gcn")


def test_intervals_hold_the_mean_and_bags_without_key_instances_are_refused():
    torch.manual_seed(0)
    rows = key_scores("x", [create_model("das-mil", in_features=4).eval()], bags(40))
    assert all(r.low <= r.mean <= r.high for r in rows)
    assert [r.mean for r in rows] == sorted((r.mean for r in rows), reverse=True)
    assert np.isfinite([r.mean for r in rows]).all()
    with pytest.raises(DataError, match="none of 1 bags is positive with known key instances"):
        usable(bags()[:1])


def test_identical_slides_of_a_patient_leave_the_interval_as_it_is():
    torch.manual_seed(0)
    model = create_model("das-mil", in_features=4).eval()
    some = bags(30)
    slides = [replace(bag, bag_id=f"{bag.bag_id}/{k}", patient_id=bag.bag_id) for bag in some for k in range(3)]
    one, three = (key_scores("x", [model], part, resamples=200) for part in (some, slides))
    assert [r.n_bags for r in three] == [45] * len(one)
    for a, b in zip(one, three, strict=True):
        assert (b.mean, b.low, b.high) == pytest.approx((a.mean, a.low, a.high), abs=1e-9)

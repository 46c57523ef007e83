"""Moving the coordinates: what the changes do, and that the AUROC and its paired interval are right."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from dasmil.attribution.space_test import CHANGES, _changed, _macro_auroc, space_test
from dasmil.errors import DataError, InputError
from dasmil.models import create_model
from dasmil.ops.das_attention.reference import pair_distances
from dasmil.stats import auroc, probabilities, score
from dasmil.types import Bag


def test_auroc_is_that_of_scikit_learn_with_ties_and_weights():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 12, 80).astype(float)
    positive = rng.random(80) < 0.4
    assert auroc(scores, positive)[0] == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)
    weights = rng.multinomial(80, np.full(80, 1 / 80), size=5)
    for value, w in zip(auroc(scores, positive, weights), weights, strict=True):
        assert value == pytest.approx(roc_auc_score(positive, scores, sample_weight=w), abs=1e-12)


def test_changes_do_what_they_say():
    coords = torch.tensor([[0.0, 0.0], [4.0, 0.0], [4.0, 2.0], [0.0, 2.0]])
    g = torch.Generator().manual_seed(0)
    changed = {name: change(coords, g) for name, change in CHANGES.items()}
    torch.testing.assert_close(
        changed["rotate 90"], torch.tensor([[3.0, -1.0], [3.0, 3.0], [1.0, 3.0], [1.0, -1.0]]), atol=1e-5, rtol=0
    )
    assert changed["mirror"].tolist() == [[4.0, 0.0], [0.0, 0.0], [0.0, 2.0], [4.0, 2.0]]
    assert changed["scale x2"].tolist() == [[-2.0, -1.0], [6.0, -1.0], [6.0, 3.0], [-2.0, 3.0]]
    for name in ("rotate 30", "rotate 90", "mirror"):
        torch.testing.assert_close(pair_distances(changed[name]), pair_distances(coords), atol=1e-5, rtol=0)
    torch.testing.assert_close(pair_distances(changed["scale x0.5"]), pair_distances(coords) / 2)
    assert sorted(changed["shuffle"].tolist()) == sorted(coords.tolist())


def near_pairs(n_bags=60):
    """Label 1 where the instances 0 and 1 are near each other; else 2 and 3 are, so positions alone say nothing."""
    g = torch.Generator().manual_seed(1)
    bags = []
    for k in range(n_bags):
        features = torch.zeros(6, 3)
        features[0, 0] = features[1, 1] = features[2:, 2] = 1
        coords = torch.rand(6, 2, generator=g) * 1000
        coords[1] = coords[0] + (10 if k % 2 else 700) * torch.tensor([1.0, 0.0])
        coords[3] = coords[2] + (700 if k % 2 else 10) * torch.tensor([1.0, 0.0])
        bags.append(Bag(features, coords, "um", f"b{k}", label=k % 2))
    return bags


def near_model():
    """Made by hand: instance 0 attends to instance 1, and takes its distance through the value embedding."""
    m = create_model(
        "das-mil",
        in_features=3,
        hidden=1,
        out_features=1,
        embeddings="v",
        distance_scale=100.0,
        theta_init=1.0,
        beta_init=8.0,
    )
    layer = m.aggregator.layers[0]
    with torch.no_grad():
        layer.query.weight.copy_(torch.tensor([[40.0, 0, 0]]))
        layer.key.weight.copy_(torch.tensor([[0, 1.0, 0]]))
        layer.value.weight.zero_()
        layer.value_embed.copy_(torch.tensor([[[0.0], [5.0]]]))  # far: 0, near: 5
        layer.self_pair = False
        m.classifier.weight.fill_(1)
        m.classifier.bias.fill_(-2)
    return m.eval()


def test_a_model_that_needs_distance_loses_it_when_distances_change_and_only_then():
    bags = near_pairs()
    result = space_test([near_model()], bags, resamples=200)
    rows = {row.change: row for row in result.rows}
    assert result.auroc > 0.95
    assert rows["shuffle"].difference < -0.1
    assert rows["shuffle"].high < 0
    for name in ("rotate 90", "rotate 30", "mirror"):
        assert rows[name].difference == pytest.approx(0, abs=0.01)
        assert rows[name].low <= 0 <= rows[name].high
    assert all(row.low <= row.difference <= row.high for row in result.rows)
    again = space_test([near_model()], bags, resamples=200)
    assert again == result


def test_identical_slides_of_a_patient_leave_the_interval_as_it_is():
    torch.manual_seed(0)
    bags, model = near_pairs(20), create_model("das-mil", in_features=3).eval()
    slides = [replace(bag, bag_id=f"{bag.bag_id}/{k}", patient_id=bag.bag_id) for bag in bags for k in range(3)]
    one, three = (space_test([model], some, changes=["scale x2"], resamples=100) for some in (bags, slides))
    assert (three.n_bags, three.n_patients, one.n_patients) == (60, 20, 20)
    assert (three.low, three.high) == pytest.approx((one.low, one.high), abs=1e-9)
    (a,), (b,) = one.rows, three.rows
    assert (b.difference, b.low, b.high) == pytest.approx((a.difference, a.low, a.high), abs=1e-9)


def test_a_model_without_positions_does_not_change_at_all():
    torch.manual_seed(0)
    m = create_model("mean-pool", in_features=3).eval()
    g = torch.Generator().manual_seed(0)
    bags = [
        Bag(torch.randn(4, 3, generator=g), torch.rand(4, 2, generator=g), "um", f"{k}", label=k % 2) for k in range(20)
    ]
    for row in space_test([m, m], bags, resamples=50).rows:
        assert (row.difference, row.low, row.high) == pytest.approx((0, 0, 0), abs=1e-12)


def test_wrong_bags_have_one_clear_message():
    m = near_model()
    bags = near_pairs(4)
    with pytest.raises(DataError, match=r"1 of 1 bags have no label"):
        space_test([m], [Bag(bags[0].features, bags[0].coords, "um", "x")])
    with pytest.raises(DataError, match=r"all 2 bags have the label 0"):
        space_test([m], bags[::2])
    with pytest.raises(InputError, match="unknown change 'turn'"):
        space_test([m], bags, changes=["turn"])


def test_several_classes_are_scored_by_probability_as_everywhere():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    # A bag's logits share a part that says nothing: it leaves the probabilities, and the classes, as they are.
    logits = rng.normal(size=(60, 3)) + np.eye(3)[labels] + rng.normal(size=(60, 1)) * 3
    expected = score(labels, probabilities(logits, 3))["auroc"]
    assert _macro_auroc(logits, labels, None)[0] == pytest.approx(expected, abs=1e-12)
    assert expected > 0.8


def test_sections_keep_their_own_positions():
    coords = torch.cat([torch.rand(20, 2), 5000 + torch.rand(30, 2)])[torch.randperm(50)]
    section = (coords[:, 0] > 1000).long()
    bag = Bag(torch.zeros(50, 1), coords, "um", "two slides", section=section)
    g = torch.Generator().manual_seed(0)
    for name, change in CHANGES.items():
        changed = _changed(bag, change, g)
        for k in (0, 1):
            inside = section == k
            torch.testing.assert_close(changed[inside].mean(0), coords[inside].mean(0), atol=1e-2, rtol=0)
            if name == "shuffle":
                assert sorted(changed[inside].tolist()) == sorted(coords[inside].tolist())
                assert changed[inside].tolist() != coords[inside].tolist()

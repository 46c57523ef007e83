"""Bags in scikit-learn's and PyTorch's own hands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from torch.utils.data import DataLoader

import dasmil
from dasmil.errors import InputError


def made_bags(n: int = 24, seed: int = 0) -> tuple[list[dasmil.Bag], np.ndarray]:
    """Bags of two classes that differ in the mean of one feature, and their classes as words."""
    rng = np.random.default_rng(seed)
    y = np.array(["normal", "tumour"])[np.arange(n) % 2]
    bags = []
    for i in range(n):
        size = int(rng.integers(4, 9))
        features = rng.normal(size=(size, 3)).astype(np.float32)
        features[:, 0] += 3.0 * (i % 2)
        coords = rng.uniform(0, 50, (size, 2)).astype(np.float32)
        bags.append(dasmil.Bag(torch.from_numpy(features), torch.from_numpy(coords), "um", f"b{i:02d}", label=i % 2))
    return bags, y


QUICK = {"epochs": 8, "lr": 0.05}


def test_fit_and_predict_proba_are_those_of_the_models() -> None:
    bags, y = made_bags()
    fitted = dasmil.MILClassifier("mean-pool", seeds=2, random_state=3, **QUICK).fit(bags, y)
    assert fitted.classes_.tolist() == ["normal", "tumour"]
    found = fitted.predict_proba(bags[:5])
    runs = dasmil.fit("mean-pool", bags, seeds=[3, 4], progress=False, **QUICK)
    with torch.no_grad():
        expected = [
            np.mean([float(torch.sigmoid(run.model.eval()(bag.features, bag.coords).logit)) for run in runs])
            for bag in bags[:5]
        ]
    np.testing.assert_allclose(found[:, 1], expected, atol=1e-6)
    np.testing.assert_allclose(found.sum(1), 1)
    assert fitted.predict(bags[:5]).tolist() == y[:5].tolist()
    assert fitted.score(bags, y) == 1.0
    assert ((fitted.decision_function(bags) > 0) == (y == "tumour")).all()


def test_clone_has_the_parameters_and_nothing_learned() -> None:
    bags, y = made_bags(8)
    fitted = dasmil.MILClassifier("mean-pool", options={"encoder_features": 4}, settings={"clip": 1.0}, **QUICK).fit(
        bags, y
    )
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError, match="is not trained"):
        copy.predict(bags)


def test_cross_val_score_and_grid_search() -> None:
    bags, y = made_bags()
    model = dasmil.MILClassifier("mean-pool", **QUICK)
    np.testing.assert_allclose(cross_val_score(model, bags, y, cv=2, scoring="roc_auc"), 1.0)
    patients = np.arange(len(bags)) // 4
    scores = cross_val_score(model, bags, y, cv=GroupKFold(2), groups=patients)
    np.testing.assert_allclose(scores, 1.0)
    search = GridSearchCV(model, {"lr": [1e-7, 0.05], "model": ["mean-pool"]}, cv=2, scoring="neg_log_loss")
    assert search.fit(bags, y).best_params_ == {"lr": 0.05, "model": "mean-pool"}


def test_three_classes_and_labels_of_the_bags() -> None:
    bags, _ = made_bags(12)
    y = np.arange(12) % 3
    found = dasmil.MILClassifier("mean-pool", epochs=1).fit(bags, y).predict_proba(bags)
    assert found.shape == (12, 3)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)
    own = dasmil.MILClassifier("mean-pool", **QUICK).fit(bags)
    assert own.classes_.tolist() == [0, 1]


def test_what_does_not_fit_is_said() -> None:
    bags, y = made_bags(6)
    with pytest.raises(InputError, match="y has shape \\(5,\\), expected one class for each of 6 bags"):
        dasmil.MILClassifier().fit(bags, y[:5])
    with pytest.raises(InputError, match="all bags are of class"):
        dasmil.MILClassifier().fit(bags, np.zeros(6))
    with pytest.raises(InputError, match=r"number 0 of the bags is 'ndarray', expected dasmil\.Bag"):
        dasmil.MILClassifier().fit([np.zeros((3, 2))], [0])  # type: ignore[list-item]
    with pytest.raises(InputError, match="bag 'b00' carries no label: give y"):
        dasmil.MILClassifier().fit([replace(bags[0], label=None)])
    with pytest.raises(InputError, match="unknown training setting 'epoch'"):
        dasmil.MILClassifier(settings={"epoch": 3}).fit(bags, y)
    fitted = dasmil.MILClassifier("mean-pool", epochs=1).fit(bags, y)
    with pytest.raises(InputError, match=r"features of shape \(2,\) per instance"):
        fitted.predict([replace(bags[0], features=bags[0].features[:, :2])])


def test_padded_batches_give_the_logits_of_single_bags() -> None:
    bags, _ = made_bags(6)
    bags[1] = replace(bags[1], section=torch.arange(len(bags[1])) % 2, label=None)
    loader = DataLoader(dasmil.BagDataset(bags), batch_size=4, collate_fn=dasmil.collate_bags)
    torch.manual_seed(0)
    model = dasmil.create_model("das-mil", in_features=3, distance_scale=10.0).eval()
    found, labels, ids = [], [], []
    with torch.no_grad():
        for batch in loader:
            found += model(batch["features"], batch["coords"], batch["mask"], batch["section"]).logit.tolist()
            labels += batch["label"].tolist()
            ids += batch["bag_id"]
        expected = [float(model(b.features, b.coords, None, b.section).logit) for b in bags]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert labels == [0, -1, 0, 1, 0, 1]
    assert ids == [bag.bag_id for bag in bags]
    odd = replace(bags[0], features=bags[0].features[:, :2])
    with pytest.raises(InputError, match="features of shapes"):
        dasmil.collate_bags([dasmil.BagDataset([bag])[0] for bag in (bags[1], odd)])

"""Crops of the contact task: right labels, matched counts, patients kept apart."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from dasmil.data.contact import ContactTask, contact_crops, counted_crops
from dasmil.errors import InputError
from dasmil.types import Bag

NAMES = ["A", "B", "other"]
TASK = ContactTask(first="A", second="B", crop_um=100, candidates=400, min_cells=5, per_patient_and_class=30)


def field(number: int, n: int = 900, size: float = 500.0) -> Bag:
    rng = np.random.default_rng(number)
    kinds = rng.choice(3, size=n, p=[0.05, 0.05, 0.9])
    return Bag(
        features=torch.eye(3)[torch.from_numpy(kinds)],
        coords=torch.from_numpy(rng.uniform(0, size, (n, 2)).astype(np.float32)),
        unit="um",
        bag_id=f"patient{number}",
        instance_labels=torch.from_numpy(kinds),
        metadata={"feature_names": NAMES},
    )


def test_labels_counts_and_patients() -> None:
    crops = contact_crops([field(i) for i in range(4)], TASK, seed=1)
    assert len(crops) > 60
    keys = Counter()
    for crop in crops:
        coords, kinds = crop.coords.numpy(), crop.instance_labels.numpy()  # type: ignore[union-attr]
        a, b = coords[kinds == 0], coords[kinds == 1]
        gap = np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1)).min()
        assert crop.label == int(gap < 15)
        assert len(crop) >= 5
        assert (np.ptp(coords, axis=0) <= 100).all()
        assert crop.patient_id == crop.bag_id.split("/")[0]
        keys[(*np.digitize([len(a), len(b)], TASK.bins), crop.label)] += 1
    for a, b, label in list(keys):
        assert keys[a, b, 0] == keys[a, b, 1], (a, b, label)
    per_patient = Counter((crop.patient_id, crop.label) for crop in crops)
    assert max(per_patient.values()) <= 30
    assert len({crop.bag_id for crop in crops}) == len(crops)


def test_seed_decides() -> None:
    fields = [field(i) for i in range(2)]
    first, again, other = (contact_crops(fields, TASK, seed=seed) for seed in (1, 1, 2))
    assert [crop.bag_id for crop in first] == [crop.bag_id for crop in again]
    assert [crop.bag_id for crop in first] != [crop.bag_id for crop in other]


def test_unknown_type() -> None:
    with pytest.raises(InputError, match="no cell type 'CD8T'; the table has A, B, other"):
        contact_crops([field(0)], ContactTask())


def test_counted_crops_have_as_many_of_every_number_in_every_bin_of_counts():
    task = ContactTask(first="a", second="b", radius_um=15, crop_um=60, min_cells=5)
    crops = counted_crops(_fields_of_two_types(), task, most=2)
    seen = Counter(crop.targets["contacts"] for crop in crops)
    assert set(seen) == {0.0, 1.0, 2.0}
    assert len(set(seen.values())) == 1
    for crop in crops:
        assert crop.instance_labels is not None
        kinds, places = crop.instance_labels.numpy(), crop.coords.numpy()
        apart = np.linalg.norm(places[kinds == 0][:, None] - places[kinds == 1][None], axis=-1)
        assert crop.targets["contacts"] == (apart.min(1) < 15).sum()


def _fields_of_two_types():
    rng = np.random.default_rng(0)
    found = []
    for number in range(3):
        kinds = rng.choice(3, 800, p=[0.15, 0.1, 0.75])
        features = torch.from_numpy(np.eye(3)[kinds]).float()
        places = torch.from_numpy(rng.uniform(0, 300, (800, 2))).float()
        known = {"instance_labels": torch.from_numpy(kinds), "metadata": {"feature_names": ["a", "b", "c"]}}
        found.append(Bag(features, places, "um", f"f{number}", **known))
    return found

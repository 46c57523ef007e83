"""The made cohort's label is its distance rule, and nothing but the distance tells the classes apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

from dasmil.data.cohort import load_cohort
from dasmil.data.labels import read_labels
from dasmil.data.synthetic import FIRST, N_TYPES, SECOND, MadeCohort, make_cohort, write_made_cohort
from dasmil.errors import InputError

SMALL = MadeCohort(tiles=(300, 600), islands=(1, 3), in_features=8)


def nearest_um(bag) -> float:
    kinds = bag.instance_labels.numpy()
    a, b = bag.coords.numpy()[kinds == FIRST], bag.coords.numpy()[kinds == SECOND]
    return float(np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1)).min())


def test_label_is_the_rule_and_keeps_the_margin() -> None:
    for bag in make_cohort(60, seed=1, design=SMALL):
        if bag.label:
            assert nearest_um(bag) <= 0.9 * SMALL.distance_um
        else:
            assert nearest_um(bag) >= 1.1 * SMALL.distance_um
        assert bag.key_instances is not None
        assert bool(bag.key_instances.any()) == bool(bag.label)


def test_counts_of_tissue_types_tell_nothing() -> None:
    bags = make_cohort(300, seed=2, design=SMALL)
    counts = np.array([np.bincount(bag.instance_labels.numpy(), minlength=N_TYPES) for bag in bags])  # type: ignore[union-attr]
    labels = np.array([bag.label for bag in bags])
    for model_input in (counts, counts / counts.sum(1, keepdims=True), counts[:, :2]):
        score = cross_val_score(
            LogisticRegression(max_iter=2000), np.log1p(model_input), labels, scoring="roc_auc"
        ).mean()
        assert 0.35 < score < 0.65


def test_same_seed_same_slides(tmp_path: Path) -> None:
    first, again, other = (make_cohort(2, seed=seed, design=SMALL)[1] for seed in (3, 3, 4))
    assert torch.equal(first.features, again.features)
    assert torch.equal(first.coords, again.coords)
    assert first.features.shape != other.features.shape or not torch.equal(first.features, other.features)


def test_written_cohort_is_read_back(tmp_path: Path) -> None:
    table = write_made_cohort(tmp_path, 4, seed=5, design=SMALL)
    cohort = load_cohort(tmp_path / "bags", read_labels(table))
    assert cohort.labels == [0, 1, 0, 1]
    original = make_cohort(4, seed=5, design=SMALL)[1]
    assert torch.equal(cohort[1].coords, original.coords)
    torch.testing.assert_close(cohort[1].features, original.features, rtol=1e-3, atol=1e-2)
    assert cohort[1].metadata["planted_distance_um"] == 1500


def test_a_label_table_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_made_cohort(tmp_path, 2, seed=5, design=SMALL)
    before = table.read_text()

    def half(path: Path, text: str) -> None:
        path.write_bytes(text[:9].encode())
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="disk full"):
        write_made_cohort(tmp_path, 4, seed=5, design=SMALL)
    assert table.read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bags", "labels.csv"]


def test_slides_are_full_size_by_default() -> None:
    bag = make_cohort(1)[0]
    assert bag.features.shape[1] == 768
    assert 1000 <= len(bag) <= 3000


def test_impossible_designs() -> None:
    with pytest.raises(InputError, match="expected more than two tiles"):
        MadeCohort(distance_um=300)
    with pytest.raises(InputError, match="margin"):
        MadeCohort(margin=0.7)

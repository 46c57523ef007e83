"""Splits keep patients together and classes in proportion."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasmil.data.splits import fingerprint, make_folds, split_patients
from dasmil.errors import InputError


def cohort(seed: int, n_patients: int, positives: float = 0.3) -> tuple[list[str], list[int]]:
    rng = np.random.default_rng(seed)
    patients, labels = [], []
    for i in range(n_patients):
        label = int(i < positives * n_patients)
        for _ in range(rng.integers(1, 4)):
            patients.append(f"p{i}")
            labels.append(label)
    return patients, labels


@given(st.integers(0, 50), st.integers(20, 60))
@settings(max_examples=25, deadline=None)
def test_folds_hold_every_bag_once_and_no_patient_twice(seed: int, n: int) -> None:
    patients, labels = cohort(seed, n)
    folds = make_folds(patients, labels, 5, seed)
    assert sorted(i for fold in folds for i in fold.test) == list(range(len(patients)))
    for fold in folds:
        groups = [{patients[i] for i in part} for part in (fold.train, fold.val, fold.test)]
        assert sum(map(len, groups)) == len(set(patients))
        assert sorted(fold.train + fold.val + fold.test) == list(range(len(patients)))
        assert {labels[i] for i in fold.test} == {0, 1}
        assert {labels[i] for i in fold.val} == {0, 1}


def test_a_fold_trains_on_most_of_what_it_does_not_test() -> None:
    patients = [f"p{i}" for i in range(120)]
    labels = [i % 2 for i in range(120)]
    for fold in make_folds(patients, labels, 3, seed=1):
        assert (len(fold.train), len(fold.val), len(fold.test)) == (68, 12, 40)
        assert sum(labels[i] for i in fold.val) == 6
    for fold in make_folds(patients, labels, 3, seed=1, val_share=None):
        assert (len(fold.train), len(fold.val), len(fold.test)) == (40, 40, 40)


def test_folds_are_stratified() -> None:
    patients = [f"p{i}" for i in range(100)]
    labels = [int(i < 20) for i in range(100)]
    for fold in make_folds(patients, labels, 5, seed=3):
        assert len(fold.test) == 20
        assert sum(labels[i] for i in fold.test) == 4


def test_shares_by_class() -> None:
    patients = [f"p{i}" for i in range(100)]
    labels = [int(i < 20) for i in range(100)]
    parts = split_patients(patients, labels, {"train": 0.6, "val": 0.2, "test": 0.2}, seed=1)
    assert {name: len(part) for name, part in parts.items()} == {"train": 60, "val": 20, "test": 20}
    assert {name: sum(labels[i] for i in part) for name, part in parts.items()} == {"train": 12, "val": 4, "test": 4}
    assert parts == split_patients(patients, labels, {"train": 0.6, "val": 0.2, "test": 0.2}, seed=1)
    assert parts != split_patients(patients, labels, {"train": 0.6, "val": 0.2, "test": 0.2}, seed=2)


def test_impossible_splits() -> None:
    patients, labels = ["a", "b", "c", "d"], [0, 1, 0, 1]
    with pytest.raises(InputError, match="class 0 has 2 patients, fewer than the 3 folds"):
        make_folds(patients, labels, 3)
    with pytest.raises(InputError, match="only 4 patients"):
        make_folds(patients, labels, 5)
    with pytest.raises(InputError, match="class 0 has 1 patients outside a test fold"):
        make_folds(patients, labels, 2)
    with pytest.raises(InputError, match="expected at least 3"):
        make_folds(patients, labels, 2, val_share=None)
    with pytest.raises(InputError, match="expected at least 2"):
        make_folds(patients, labels, 1)
    with pytest.raises(InputError, match="sum to 1"):
        split_patients(patients, labels, {"train": 0.5, "val": 0.2})
    with pytest.raises(InputError, match="too few"):
        split_patients(["a"], [0], {"train": 0.5, "val": 0.5})


def test_fingerprint_ignores_order_only() -> None:
    assert fingerprint(["a", "b"]) == fingerprint(["b", "a"]) != fingerprint(["a", "c"])

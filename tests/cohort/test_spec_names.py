"""Names of a cohort's specification: a list or one text, in memory a tuple, in a record as the command takes it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

import dasmil
from dasmil.cli import app
from dasmil.data.store import write_bag
from dasmil.study.spec import NAMES, BagSpec
from dasmil.types import Bag

GIVEN = {"classes": ["b", "a"], "feature_columns": ("x1", "x2"), "covariates": "age, stage,", "times": [365, 730.5]}


def test_lists_and_text_are_the_same_names() -> None:
    spec = dasmil.CohortSpec(**GIVEN)  # type: ignore[arg-type]
    text = dasmil.CohortSpec(classes="b,a", feature_columns="x1,x2", covariates="age,stage", times="365,730.5")
    assert spec == text
    assert {name: getattr(spec, name) for name in NAMES} == {
        "classes": ("b", "a"), "map": None, "times": ("365", "730.5"), "target_columns": None,
        "feature_columns": ("x1", "x2"), "covariates": ("age", "stage"),
    }  # fmt: skip


def test_a_record_loads_the_same_specification() -> None:
    for classes in (["b", "a"], ["grade 1, low", "grade 2"]):
        spec = dasmil.CohortSpec(bags="bags", classes=classes, mpp=0.25)
        again = dasmil.CohortSpec.from_record(json.loads(json.dumps(spec.as_record())))
        assert (again.classes, again.mpp, again.bags) == (tuple(classes), 0.25, Path("bags").absolute())
    assert dasmil.CohortSpec(classes=["b", "a"]).as_record() == {"classes": "b,a"}
    assert "covariates" not in BagSpec(classes="b,a").as_record()


def test_the_command_line_takes_names_as_one_text() -> None:
    for verb in ("train", "doctor"):
        known = {argument.name: argument for argument in app[verb].assemble_argument_collection()}
        assert known["--target-columns"].hint == str | None
        assert known["--feature-columns"].token_count() == (1, False)


def test_a_scale_may_be_a_number(tmp_path: Path) -> None:
    import h5py

    corners = np.array([[0, 0], [512, 0], [0, 512], [512, 512]])
    with h5py.File(tmp_path / "clam.h5", "w") as file:
        file["features"], file["coords"] = np.ones((4, 3)), corners
    (bag,) = dasmil.CohortSpec(bags=tmp_path, mpp=0.5).load()
    np.testing.assert_allclose(bag.coords.numpy(), (corners + 256) * 0.5)


def test_classes_are_ordered_as_the_list_says(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_bag(tmp_path / f"{name}.h5", Bag(torch.ones(2, 3), torch.rand(2, 2), "um", name))
    (tmp_path / "labels.csv").write_text("slide,label\none,b\ntwo,a\n")
    cohort = dasmil.CohortSpec(bags=tmp_path, labels=tmp_path / "labels.csv", classes=["b", "a"]).load()
    assert (cohort.classes, cohort.labels) == (("b", "a"), [0, 1])

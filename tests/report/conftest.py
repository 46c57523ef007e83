"""Small real runs, trained in a second each, that the reports are made from."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dasmil.report import write_report
from dasmil.study.folds import write_fold_summary
from dasmil.train import fit
from dasmil.types import Bag


def make_bags(count: int, classes: int, name: str, seed: int) -> list[Bag]:
    """Bags of five instances whose first feature tells the class, not without errors."""
    generator = torch.Generator().manual_seed(seed)
    bags = []
    for i in range(count):
        label = i % classes
        features = torch.randn(5, 4, generator=generator)
        features[:, 0] += 0.8 * label
        coords = torch.rand(5, 2, generator=generator) * 200
        bags.append(Bag(features=features, coords=coords, unit="um", bag_id=f"{name}-{i}", label=label))
    return bags


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories: two-class das-mil, three-class max-pool, a cross-validation, and four slides a patient."""
    root = tmp_path_factory.mktemp("runs")
    common = {"epochs": 3, "restarts": 0}
    train, val, test = (make_bags(16, 2, name, seed) for seed, name in enumerate(("train", "val", "<b>test</b>")))
    fit("das-mil", train, val, seeds=2, out=root / "binary", tests={"test": test}, data={"bags": "slides"}, **common)
    train3, val3, test3 = (make_bags(18, 3, name, seed) for seed, name in enumerate(("train", "val", "test")))
    fit("max-pool", train3, val3, seeds=2, out=root / "three", tests={"test": test3},
        data={"bags": "cells", "classes": ["A & O", "B", "C"]}, **common)  # fmt: skip
    for fold in range(2):
        fit("mean-pool", train, val, seeds=2, out=root / "folds" / f"fold-{fold}", data={"fold": fold},
            tests={"test": make_bags(12, 2, f"fold{fold}", 10 + fold)}, **common)  # fmt: skip
    write_fold_summary(root / "folds", 2)
    slides = [[replace(bag, patient_id=f"patient {i // 4}") for i, bag in enumerate(s)] for s in (train, val, test)]
    fit("mean-pool", *slides[:2], out=root / "patients", tests={"test": slides[2]}, **common)
    return root


@pytest.fixture
def binary(trained: Path, tmp_path: Path) -> Path:
    """A copy of the two-class run that a test may change."""
    return Path(shutil.copytree(trained / "binary", tmp_path / "run", ignore=shutil.ignore_patterns("report.html")))


@pytest.fixture(scope="session")
def pages(trained: Path) -> dict[str, str]:
    """The reports of the three runs."""
    return {name: write_report(trained / name).read_text() for name in ("binary", "three", "folds")}

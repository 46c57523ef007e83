"""The spatial benchmark: its pages are made from the stored cells, and a cell goes on where it stopped."""

from __future__ import annotations

import gzip
import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from dasmil.stats import harrell
from dasmil.types import Bag

ROOT = Path(__file__).parents[2]
STORED = ROOT / "docs" / "results" / "spatial"


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.setattr(sys, "path", [str(ROOT / "experiments"), *sys.path])
    return {name: importlib.import_module(name) for name in ("cells", "crc", "spatial")}


def test_the_pages_are_those_of_the_stored_cells(experiments: dict[str, ModuleType]) -> None:
    spatial = experiments["spatial"]
    assert STORED.with_suffix(".md").read_text(encoding="utf-8") == spatial.text(STORED)
    assert STORED.with_name("crc.md").read_text(encoding="utf-8") == spatial.crc_text(STORED)


def test_the_tables_say_what_the_predictions_say() -> None:
    page = STORED.with_suffix(".md").read_text(encoding="utf-8")
    for task, title in (("contact", "## Contact"), ("made", "## Two rare"), ("melanoma", "## Response")):
        section = page[page.index(title) :]
        shown = dict(re.findall(r"^\| ([a-z-]+) \| [^|]+ \| ([0-9.]+) \[", section.split("\n## ")[0], re.MULTILINE))
        assert shown
        for model, value in shown.items():
            folds = json.loads((STORED / task / f"{model}.json").read_text(encoding="utf-8"))["folds"]
            each = [np.mean([roc_auc_score(fold["labels"], row) for row in fold["scores"]]) for fold in folds]
            assert f"{np.mean(each):.3f}" == value


def made(count: int) -> list[Bag]:
    generator = torch.Generator().manual_seed(0)
    bags = []
    for i in range(count):
        features = torch.randn(6, 3, generator=generator) + 0.5 * (i % 2)
        coords = torch.rand(6, 2, generator=generator)
        bags.append(Bag(features, coords, "um", f"b{i}", label=i % 2, patient_id=f"p{i // 2}"))
    return bags


def test_counts_of_pairs_give_the_same_figures_as_predictions(
    experiments: dict[str, ModuleType], tmp_path: Path
) -> None:
    cells = experiments["cells"]
    found: list[dict[str, Any]] = []
    for keep in (True, False):
        task = cells.Task("made", made(40), folds=3, keep_scores=keep)
        found.append(cells.run_cell(task, "composition", tmp_path / str(keep), seeds=1))
    assert "scores" not in found[1]["folds"][0]
    assert "labels" not in found[1]["folds"][0]
    assert cells.scores(found[0])["auroc"] == cells.scores(found[1])["auroc"]
    assert np.array_equal(cells.drawn(found[0]), cells.drawn(found[1]))
    parts = [roc_auc_score(fold["labels"], fold["scores"][0]) for fold in found[0]["folds"]]
    assert cells.scores(found[0])["auroc"] == pytest.approx(np.mean(parts), abs=1e-12)


def test_pairs_of_survival_are_those_of_the_c_index(
    experiments: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, rng = experiments["cells"], np.random.default_rng(0)
    bags = [
        Bag(b.features, b.coords, "um", b.bag_id, patient_id=b.bag_id, targets={"time": time, "event": event})
        for b, time, event in zip(made(30), rng.integers(1, 9, 30), rng.integers(0, 2, 30), strict=True)
    ]  # few times: many are equal
    task = cells.Task("made", bags, folds=3, keep_scores=False, survival=True)
    said: list[tuple[list[Bag], np.ndarray]] = []
    keep = cells._kept

    def listen(task: Any, some: list[Bag], who: list[str], scores: Any) -> dict[str, Any]:
        said.append((some, scores[0]))
        return keep(task, some, who, scores)

    monkeypatch.setattr(cells, "_kept", listen)
    cell = cells.run_cell(task, "composition", tmp_path, seeds=1)
    expected = [float(harrell(cells.follow_up(some), np.round(risk, 5))[0]) for some, risk in said]
    assert cells.scores(cell)["auroc"] == pytest.approx(np.mean(expected), abs=1e-12)
    assert len(set(expected)) == 3
    assert "time" not in json.dumps(cell)
    assert all("labels" not in fold for fold in cell["folds"])


def test_a_cell_goes_on_where_it_stopped(experiments: dict[str, ModuleType], tmp_path: Path) -> None:
    cells = experiments["cells"]
    task = cells.Task("made", made(24), folds=3)
    whole = cells.run_cell(task, "composition", tmp_path, seeds=1)
    path = tmp_path / "made" / "composition.json"
    path.write_text(json.dumps({**whole, "folds": [{**whole["folds"][0], "mark": "kept"}]}))
    again = cells.run_cell(task, "composition", tmp_path, seeds=1)
    assert again["folds"][0]["mark"] == "kept"
    assert again["folds"][1]["scores"] == whole["folds"][1]["scores"]
    path.write_text(json.dumps({**again, "settings": {"C": [7.0]}}))  # trained with other settings: not the same cell
    assert "mark" not in cells.run_cell(task, "composition", tmp_path, seeds=1)["folds"][0]


def test_the_rate_is_chosen_on_validation_bags(
    experiments: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rates on the training bags, then the seeds with the best of them on training and validation bags."""
    cells = experiments["cells"]
    asked: list[tuple[set[str], list[float]]] = []
    fit = cells.dasmil.fit

    def listen(model: str, bags: list[Bag], **how: Any) -> Any:
        rates = [spec.lr for spec in how["runs"]] if "runs" in how else [how["lr"]] * how["seeds"]
        asked.append(({bag.bag_id for bag in bags}, rates))
        return fit(model, bags, **how)

    monkeypatch.setattr(cells.dasmil, "fit", listen)
    task = cells.Task("made", made(24), folds=3, epochs=1)
    cell = cells.run_cell(task, "ab-mil", tmp_path, seeds=2)
    for number, fold in enumerate(cell["folds"]):
        (tried, rates), (trained, chosen) = asked[2 * number : 2 * number + 2]
        assert rates == list(cells.RATES)
        best = min(fold["trials"], key=lambda trial: trial["val_loss"])["lr"]
        assert chosen == [best, best] == [fold["chosen"]] * 2
        assert tried < trained
        assert not any(bag.patient_id in fold["patients"] for bag in task.bags if bag.bag_id in trained)


def test_windows_of_the_infiltration_task(experiments: dict[str, ModuleType], tmp_path: Path) -> None:
    """Six inflammatory nuclei 10 px (5.5 um) from an epithelial one in image 1, 100 px (55 um) in image 2."""
    rows = ["image,x_px,y_px,class"]
    for image, gap in ((1, 10), (2, 100)):
        for i in range(6):
            rows.append(f"{image},100,{100 + 20 * i},epithelial")
            rows.append(f"{image},{100 + gap},{100 + 20 * i},inflammatory")
    with gzip.open(tmp_path / "cells.csv.gz", "wt") as file:
        file.write("\n".join(rows) + "\n")
    (tmp_path / "images.csv").write_text("image,region\n1,7\n2,8\n")
    bags = experiments["crc"].windows(tmp_path)
    assert sum(bag.label for bag in bags) * 2 == len(bags) > 0
    for bag in bags:
        positive = bag.patient_id == "region 7"
        assert bag.label == positive
        assert bag.features.sum(0).tolist() == [6, 6, 0, 0]
        apart = torch.cdist(bag.coords[bag.features[:, 1] == 1], bag.coords[bag.features[:, 0] == 1]).min()
        assert float(apart) == pytest.approx(5.5 if positive else 55.0, rel=1e-5)

"""The grid: what is searched, who chooses, and what choosing on the test set would have claimed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasmil.data import load_dataset
from dasmil.paper import grid
from dasmil.paper.grid import (
    Choice,
    Setting,
    check_grid_unit,
    choices,
    grid_path,
    grid_plans,
    grid_units,
    run_grid_unit,
)
from dasmil.paper.page import _grid_rows
from dasmil.paper.text import GRID_HEAD, grid_cells, grid_markdown
from dasmil.train.run_dir import read_json


def plans(model: str) -> list[dict[str, Any]]:
    return grid_plans([model], "published", dataset="mnist-collage", quick=False)


def test_the_grid_is_the_papers() -> None:
    found = plans("das-mil")
    assert len(found) == 9
    assert {(p["options"]["hidden"], p["options"]["pooling"]) for p in found} == {
        (h, p) for h in (10, 15, 20) for p in ("mean", "max", "sum")
    }
    assert sorted(found[0]["lr"]) == [1e-4, 1e-3, 1e-2]
    assert sorted(found[0]["weight_decay"]) == [1e-3, 1e-2, 1e-1]
    assert len(plans("ab-mil")) == 3
    assert len(plans("transmil")) == 1


def small_sets(dataset: str, protocol: str) -> dict[str, Any]:
    return {
        "validation": load_dataset(dataset, protocol="clean", split="val", n_bags=40),
        "test": load_dataset(dataset, protocol="clean", split="test", n_bags=20),
        "test-large": load_dataset(dataset, protocol="clean", split="test-large", n_bags=60),
    }


def test_a_part_of_the_grid_is_trained_stored_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "held_out", small_sets)
    plan: dict[str, Any] = {**plans("max-pool")[0], "lr": [1e-2, 1e-3], "weight_decay": [0.1]}
    plan["training"] = {**plan["training"], "epochs": 1}
    (unit,) = grid_units([plan], tmp_path)
    run_grid_unit(**unit.arguments)
    path = grid_path(tmp_path, plan)
    manifest = read_json(path)
    assert [(s["lr"], s["weight_decay"]) for s in manifest["settings"]] == [(1e-2, 0.1), (1e-3, 0.1)]
    sets = small_sets("mnist-collage", "published")
    labels = {name: np.array([bag.label for bag in bags]) for name, bags in sets.items()}
    assert check_grid_unit(path, lambda _: labels) == []
    wrong = check_grid_unit(path, lambda _: {**labels, "test": 1 - labels["test"]})
    assert wrong == ["the stored labels of test are not those of the bags"]


def test_validation_chooses_and_the_test_set_is_only_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plans("transmil")[0]
    settings = [
        Setting(1e-3, 0.1, None, None, validation=0.90, validation_auroc=0.9, test=0.91, test_large=0.905),
        Setting(1e-4, 0.1, None, None, validation=0.90, validation_auroc=0.95, test=0.89, test_large=0.910),
        Setting(1e-2, 0.1, None, None, validation=0.80, validation_auroc=0.8, test=0.97, test_large=0.820),
    ]
    manifest = {"format": grid.FORMAT, "format_version": 1, "plan": plan, "settings": [vars(s) for s in settings]}
    grid.write_json(grid_path(tmp_path, plan), manifest)
    (choice,) = choices(tmp_path, "published")
    assert choice.by_validation.lr == 1e-4  # of equals, the better AUROC
    assert choice.by_test.lr == 1e-2
    assert (choice.by_test.test, choice.by_test.test_large) == (0.97, 0.82)
    assert choice.paper == "lr 0.0001, weight decay 0.1"
    assert choices(tmp_path, "clean") == []


def test_the_papers_settings_are_shown_in_full() -> None:
    assert grid._paper_setting("das-mil") == "lr 0.001, weight decay 0.01, hidden 10, max"
    assert grid._paper_setting("ab-mil") == "lr 0.0001, weight decay 0.001, hidden 15"


def test_rows_of_two_data_sets_can_be_told_apart() -> None:
    best = Setting(1e-3, 0.01, 10, "max", 0.9, 0.9, 0.9, 0.9)
    found = [Choice("das-mil", name, 1, 9, best, best, "as printed") for name in ("mnist-collage", "mnist-collage-inv")]
    rows = [dict(zip(GRID_HEAD, grid_cells(choice), strict=True)) for choice in found]
    assert [row["data set"] for row in rows] == ["mnist-collage", "mnist-collage-inv"]
    assert "| das-mil | mnist-collage-inv | 1 of 9 |" in grid_markdown("published", found)
    for choice in found:
        first, *others = _grid_rows(choice)
        assert first[1] == choice.dataset
        assert {len(row) for row in (first, *others)} == {7}

"""The grid: what is searched, who chooses, and what choosing on the test set would have claimed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasmil.data import load_dataset
from dasmil.files import read_json
from dasmil.paper import grid
from dasmil.paper.grid import (
    Choice,
    GridSetting,
    check_grid_unit,
    choices,
    grid_claims,
    grid_path,
    grid_plans,
    grid_units,
    run_grid_unit,
)
from dasmil.paper.page import _claimed, _grid_rows
from dasmil.paper.reproduce import Reproduction, write_outputs
from dasmil.paper.text import GRID_HEAD, grid_cells, grid_markdown


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


def test_validation_chooses_and_the_test_set_is_only_quoted(tmp_path: Path) -> None:
    plan = plans("transmil")[0]
    settings = [
        GridSetting(1e-3, 0.1, None, None, validation=0.90, validation_auroc=0.9, test=0.91, test_large=0.905),
        GridSetting(1e-4, 0.1, None, None, validation=0.90, validation_auroc=0.95, test=0.89, test_large=0.910),
        GridSetting(1e-2, 0.1, None, None, validation=0.80, validation_auroc=0.8, test=0.97, test_large=0.820),
    ]
    manifest = {"format": grid.FORMAT, "format_version": 1, "plan": plan, "settings": [vars(s) for s in settings]}
    grid.write_json(grid_path(tmp_path, plan), manifest)
    (choice,) = choices(tmp_path, "published")
    assert choice.by_validation.lr == 1e-4  # of equals, the better AUROC
    assert choice.by_test.lr == 1e-2
    assert (choice.by_test.test, choice.by_test.test_large) == (0.97, 0.82)
    assert choice.paper == "lr 0.0001, weight decay 0.1"
    assert choice.as_paper == settings[1]
    assert choices(tmp_path, "clean") == []
    write_outputs("published", tmp_path, Reproduction())
    page = (tmp_path / "published.html").read_text()
    assert "1 complete grid: what choosing on the test bags claims is on average +0.150" in page
    assert "| claimed" in page


def test_the_papers_settings_are_shown_in_full() -> None:
    assert grid._paper_setting("das-mil") == "lr 0.001, weight decay 0.01, hidden 10, max"
    assert grid._paper_setting("ab-mil") == "lr 0.0001, weight decay 0.001, hidden 15"


def test_rows_of_two_data_sets_can_be_told_apart() -> None:
    best = GridSetting(1e-3, 0.01, 10, "max", 0.9, 0.9, 0.9, 0.9)
    found = [
        Choice("das-mil", name, 1, 9, best, best, "as printed", None) for name in ("mnist-collage", "mnist-collage-inv")
    ]
    rows = [dict(zip(GRID_HEAD, grid_cells(choice), strict=True)) for choice in found]
    assert [row["data set"] for row in rows] == ["mnist-collage", "mnist-collage-inv"]
    assert "| das-mil | mnist-collage-inv | 1 of 9 |" in grid_markdown("published", found)
    for choice in found:
        first, *others = _grid_rows(choice)
        assert first[1] == choice.dataset
        assert {len(row) for row in (first, *others)} == {7}


def test_the_complete_grids_are_summed_up_and_drawn() -> None:
    a = GridSetting(1e-3, 0.01, 10, "max", 0.93, 0.9, test=0.90, test_large=0.92)
    b = GridSetting(1e-3, 0.10, 10, "max", 0.91, 0.9, test=0.98, test_large=0.94)
    c = GridSetting(1e-4, 0.10, 10, "max", 0.91, 0.9, test=0.80, test_large=0.81)
    found = [
        Choice("das-mil", "mnist-collage", 9, 9, a, b, c.text(), c),
        Choice("sa", "mnist-collage", 9, 9, b, a, "lr 0.5", None),
        Choice("gat", "mnist-collage", 8, 9, c, c, c.text(), c),  # not complete: does not count
    ]
    assert grid_claims(found) == [
        "2 complete grids: what choosing on the test bags claims is on average +0.010 against the same setting on "
        "2,000 clean bags (-0.020 to +0.040).",
        "Settings chosen on the validation bags have on average +0.000 on 2,000 clean bags against those chosen on "
        "the test bags (-0.020 to +0.020).",
        "Against the paper's settings (1 of 2 are points of the grid) they have on average +0.110 there (+0.110 to "
        "+0.110); a choice among runs of one seed is also a choice of lucky runs: the collage table has five seeds of "
        "the paper's settings.",
    ]
    assert grid_claims(found[2:]) == []
    assert [row[3:] for row in _grid_rows(found[0])][2] == [c.text(), "0.910", "0.800", "0.810"]
    assert _grid_rows(found[1])[2][3:] == ["lr 0.5", "–", "–", "–"]
    assert grid_cells(found[0])[-1] == "0.810"
    assert grid_cells(found[1])[-1] == "–"
    drawn = _claimed(found, "mnist-collage")
    assert drawn is not None
    assert "| claimed" in drawn.svg
    assert _claimed(found, "mnist-collage-inv") is None

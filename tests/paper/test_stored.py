"""A cell is trained once, its figures follow from its stored predictions, and damage is found."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from dasmil.engine import EngineOptions, run_units
from dasmil.errors import DataError, InputError
from dasmil.files import read_json
from dasmil.paper.cells import GridCell, make_cell
from dasmil.paper.reproduce import Folders, cell_units, check
from dasmil.paper.stored import cell_path, read_arrays, read_cell, read_predictions


def test_the_stored_figures_are_those_of_the_run_directory(trained: Folders, cell: GridCell) -> None:
    manifest = read_cell(cell_path(trained.results, cell.key))
    assert manifest is not None
    run = read_json(trained.runs / cell.key / "summary.json")
    assert {s: v["n"] for s, v in manifest["summary"].items()} == {
        "train": 300, "validation": 300, "test": 100, "test-large": 2000
    }  # fmt: skip
    for split, scored in manifest["summary"].items():
        for metric in ("balanced_accuracy", "auroc"):
            # Half precision moves a few ties, no more.
            assert scored[metric]["mean"] == pytest.approx(run["splits"][split]["mean"][metric], abs=2e-3)
    assert manifest["parameters"] == 15_585
    assert manifest["versions"]["torch"]
    assert manifest["plan"]["training"]["lr"] == 1e-4
    assert manifest["config"]["seeds"] == [0, 1]
    with open(trained.runs / cell.key / "seed-1" / "metrics.csv", encoding="utf-8") as file:
        seen = float(list(csv.DictReader(file))[-1]["train_balanced_accuracy"])
    assert manifest["seeds"][1]["last_epoch"]["train_balanced_accuracy"] == seen


def test_stored_logits_are_those_of_predictions_csv(trained: Folders, cell: GridCell) -> None:
    stored = read_predictions(cell_path(trained.results, cell.key).with_suffix(".npz"))
    with open(trained.runs / cell.key / "seed-1" / "predictions.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "test"]
    assert stored.logits["test"][1] == pytest.approx([float(row["logit"]) for row in rows], rel=1e-3, abs=1e-4)
    assert stored.labels["test"].tolist() == [int(row["label"]) for row in rows]


def test_a_finished_cell_is_not_trained_again(trained: Folders, cell: GridCell) -> None:
    before = cell_path(trained.results, cell.key).stat().st_mtime_ns
    progress = run_units(cell_units([cell], trained), trained.runs, EngineOptions(workers=1))
    assert (progress.skipped, progress.done, progress.failed) == (1, 0, {})
    assert cell_path(trained.results, cell.key).stat().st_mtime_ns == before


def test_a_cell_with_other_settings_is_refused(trained: Folders) -> None:
    with pytest.raises(InputError, match=r"other settings .*epochs: 1 -> 50"):
        cell_units([make_cell("collage", "max-pool", "mnist-collage", "published")], trained)


def test_check_accepts_what_was_stored(stored: Path) -> None:
    assert check(stored) == {"cells": 1, "grid_units": 0, "wrong": {}}


def test_check_finds_a_changed_figure(stored: Path, cell: GridCell) -> None:
    path = cell_path(stored, cell.key)
    manifest = json.loads(path.read_text())
    manifest["summary"]["test-large"]["auroc"]["mean"] += 0.001
    path.write_text(json.dumps(manifest))
    (reasons,) = check(stored)["wrong"].values()
    assert len(reasons) == 1
    assert reasons[0].startswith("test-large auroc mean: stored 0.")


@pytest.mark.parametrize(
    ("array", "message"), [("logits.test", "recomputed"), ("labels.test", "not those of the bags")]
)
def test_check_finds_changed_predictions(stored: Path, cell: GridCell, array: str, message: str) -> None:
    path = cell_path(stored, cell.key).with_suffix(".npz")
    arrays = read_arrays(path)
    changed = arrays[array].copy()
    if array.startswith("labels"):
        changed[:2] = 1 - changed[:2]
    else:
        changed[0] = -changed[0]
    np.savez_compressed(path, allow_pickle=False, **{**arrays, array: changed})
    (reasons,) = check(stored)["wrong"].values()
    assert any(message in reason for reason in reasons)


def test_a_torn_file_and_an_empty_folder_are_errors(stored: Path, cell: GridCell, tmp_path: Path) -> None:
    path = cell_path(stored, cell.key).with_suffix(".npz")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match="not readable"):
        check(stored)
    with pytest.raises(DataError, match="holds no stored cells"):
        check(tmp_path / "nothing")


def test_quick_results_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Folders.choose(Path("out"), None, quick=False).results == Path("out/results")
    (tmp_path / "docs" / "results" / "collage").mkdir(parents=True)
    assert Folders.choose(Path("out"), None, quick=False).results == Path("docs/results")
    assert Folders.choose(Path("out"), None, quick=True).results == Path("out/quick/results")
    with pytest.raises(InputError, match="its own folder"):
        Folders.choose(Path("out"), Path("docs/results"), quick=True)

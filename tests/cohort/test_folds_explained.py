"""A cross-validation is explained by the fold that held the bag out, in the terminal, on the page and in the viewer."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dasmil.cli import view as view_module
from dasmil.errors import InputError
from dasmil.study import viewing
from dasmil.viewer.answers import account
from dasmil.viewer.shelf import Shelf

from .calls import run


@pytest.fixture(scope="module")
def crossed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("crossed") / "run"
    cohort = ("--bags", made / "bags", "--labels", made / "labels.csv")
    command = ("train", *cohort, "--model", "mean-pool", "--epochs", 2, "--folds", 3, "--seeds", 2, "--out", out)
    assert run(*command) == 0
    return out


def rows_of(crossed: Path, fold: int, seed: int) -> dict[str, dict[str, str]]:
    with (crossed / f"fold-{fold}" / f"seed-{seed}" / "predictions.csv").open() as file:
        return {row["bag_id"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize(("fold", "seed"), [(0, 0), (2, 0), (1, 1)])
def test_explain_uses_the_fold_that_held_the_bag_out(crossed: Path, tmp_path: Path, capsys, fold, seed) -> None:
    rows = rows_of(crossed, fold, seed)
    bag_id, row = next((bag_id, row) for bag_id, row in rows.items() if row["split"] == "test")
    more = () if seed == 0 else ("--seed", seed)
    capsys.readouterr()
    assert run("explain", crossed, "--bag", bag_id, "-o", tmp_path, *more, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["fold"], found["seed"], found["set"]) == (fold, seed, "test")
    assert found["logit"] == pytest.approx(float(row["logit"]), abs=1e-4), "its out-of-fold prediction"
    assert run("explain", crossed, "--bag", bag_id, "-o", tmp_path, *more) == 0
    text = f"fold {fold}, seed {seed}; this bag was in its test set"
    assert text in capsys.readouterr().out
    assert text in (tmp_path / "explanation.html").read_text()


def test_the_file_of_a_bag_is_explained_by_its_fold_too(crossed: Path, made: Path, tmp_path: Path, capsys) -> None:
    bag_id = next(bag_id for bag_id, row in rows_of(crossed, 2, 0).items() if row["split"] == "test")
    capsys.readouterr()
    assert run("explain", crossed, "--bag", made / "bags" / f"{bag_id}.h5", "-o", tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["fold"] == 2


def test_a_seed_that_no_fold_has_is_refused(crossed: Path, tmp_path: Path) -> None:
    bag_id = next(iter(rows_of(crossed, 0, 0)))
    with pytest.raises(InputError, match="has no seed 7: it has 0, 1"):
        run("explain", crossed, "--bag", bag_id, "-o", tmp_path, "--seed", 7)


def test_the_viewer_shows_every_bag_once_by_the_fold_that_held_it_out(crossed: Path, monkeypatch, tmp_path) -> None:
    shelves: list[Shelf] = []
    monkeypatch.setattr(viewing, "serve", lambda shelf, *_: shelves.append(shelf))
    view_module.view(crossed, compare=[crossed / "fold-1"])
    (shelf,) = shelves
    assert [voice.title for voice in shelf.voices[:3]] == ["fold 0, seed 0", "fold 0, seed 1", "fold 1, seed 0"]
    assert [voice.title for voice in shelf.voices[6:]] == ["fold-1, seed 0", "fold-1, seed 1"]
    tests = {b: k for k in range(3) for b, row in rows_of(crossed, k, 0).items() if row["split"] == "test"}
    assert {e.bag_id: e.voice // 2 for e in shelf.entries} == tests
    entry = next(k for k, e in enumerate(shelf.entries) if e.voice == 2)
    bag_id = shelf.entries[entry].bag_id
    answer = account(shelf, entry, None)
    assert answer["logit"] == pytest.approx(float(rows_of(crossed, 1, 0)[bag_id]["logit"]), abs=1e-4)
    assert answer["origin"] == "fold 1, seed 0; this bag was in its test set"
    trained = next(k for k in (0, 2) if rows_of(crossed, k, 0)[bag_id]["split"] == "train")
    assert account(shelf, entry, 2 * trained)["origin"] == f"fold {trained}, seed 0; it was trained on this bag"
    # A run to compare with says what the bag was to it too, if its bags are the same.
    assert account(shelf, entry, 6)["origin"] == "fold-1, seed 0; this bag was in its test set"
    other = next(k for k, e in enumerate(shelf.entries) if rows_of(crossed, 1, 0)[e.bag_id]["split"] == "train")
    assert account(shelf, other, 6)["origin"] == "fold-1, seed 0; it was trained on this bag"
    away = shutil.copytree(crossed / "fold-1", tmp_path / "away")
    config = json.loads((away / "config.json").read_text())
    config["data"]["cohort"]["bags"] = "/another/cohort"
    (away / "config.json").write_text(json.dumps(config))
    view_module.view(crossed, compare=[away])
    assert account(shelves[1], other, 6)["origin"] == "away, seed 0"


def test_the_space_test_scores_each_fold_on_what_it_held_out(crossed: Path, capsys) -> None:
    capsys.readouterr()
    assert run("explain", crossed, "--space-test", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    summary = json.loads((crossed / "summary.json").read_text())["splits"]["test"]
    assert found["n_bags"] == summary["n"]
    assert found["n_models"] == 6
    folds = [json.loads((crossed / f"fold-{k}" / "summary.json").read_text())["splits"]["test"] for k in range(3)]
    mean = np.mean([fold["mean"]["auroc"] for fold in folds])
    assert found["auroc"] == pytest.approx(mean, abs=1e-6)
    assert run("explain", crossed, "--space-test") == 0
    assert "each fold on its own test bags" in capsys.readouterr().out

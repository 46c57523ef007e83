"""What a cohort of this size can show: the counts of the split that training makes, and their smallest AUROC."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dasmil.cli import app
from dasmil.data.showing import showing_text, what_shows
from dasmil.data.store import write_bag
from dasmil.stats import smallest_auroc
from dasmil.types import Bag


def test_the_parts_of_a_hundred_patients() -> None:
    patients, labels = [f"p{i // 2}" for i in range(200)], [i // 2 % 2 for i in range(200)]  # two slides each
    val, test, folds = what_shows(patients, labels, {}, ["a", "b"])
    assert (val.where, test.where) == ("val", "test")
    assert 14 <= test.positives + test.negatives <= 16
    assert test.smallest == smallest_auroc([(test.positives, test.negatives)])
    assert (folds.positives, folds.negatives) == (50, 50)
    assert folds.smallest == pytest.approx(smallest_auroc([(10, 10)] * 5))
    assert folds.smallest == pytest.approx(0.616, abs=1e-3)
    assert folds.to_find is not None
    assert folds.smallest < folds.to_find < 0.75
    text = showing_text([val, test, folds], ["a", "b"])
    assert text.startswith("An AUROC is better than chance (95 %) on val (")
    assert "5 folds, their mean (50 + 50 patients): from 0.62 on, likely if the true one is 0.6" in text


def test_the_split_of_the_table_counts_and_a_tiny_set_shows_nothing() -> None:
    splits = {"train": list(range(20)), "test": list(range(20, 26))}
    found = what_shows([f"p{i}" for i in range(26)], [i % 2 for i in range(26)], splits, ["a", "b"])
    test = next(part for part in found if part.where == "test")
    assert (test.positives, test.negatives, test.smallest) == (3, 3, None)
    assert "test (3 + 3 patients): never" in showing_text(found, ["a", "b"])
    folds = next(part for part in found if part.where.startswith("5 folds"))
    assert folds.positives + folds.negatives == 20  # test slides of the table stay apart


def test_of_three_classes_the_rarest_against_the_rest() -> None:
    labels = [0] * 30 + [1] * 20 + [2] * 10
    folds = what_shows([f"p{i}" for i in range(60)], labels, {}, ["a", "b", "c"])[-1]
    assert (folds.positives, folds.negatives) == (10, 50)
    assert "of the rarest class against the rest" in showing_text([folds], ["a", "b", "c"])
    assert what_shows(["p"], [None], {}, ["a", "b"]) == []
    assert what_shows(["p", "q"], [0, 1], {}, ["a", "b"]) == []  # nothing to split


def test_the_doctor_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bags").mkdir()
    rows = ["slide,label"]
    for i in range(20):
        bag = Bag(torch.rand(4, 3), 100 * torch.eye(4)[:, :2], "um", f"s{i}")
        write_bag(tmp_path / "bags" / f"s{i}.h5", bag)
        rows.append(f"s{i},{'ab'[i % 2]}")
    (tmp_path / "labels.csv").write_text("\n".join(rows) + "\n")
    arguments = ["doctor", str(tmp_path / "bags"), "--labels", str(tmp_path / "labels.csv")]
    app(arguments, result_action="return_value")
    assert "5 folds, their mean (10 + 10 patients): from 0.78 on" in " ".join(capsys.readouterr().out.split())
    app([*arguments, "--json"], result_action="return_value")
    shows = json.loads(capsys.readouterr().out)["shows"]
    assert shows[-1]["smallest"] == pytest.approx(smallest_auroc([(2, 2)] * 5))

"""`dasmil audit`: leaks are found where they were planted, and nothing where there are none."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from dasmil.cli import app
from dasmil.data.given_splits import GivenFold, GivenPredictions
from dasmil.study.audit import audit

SOUND = {"train": ["a", "b", "c"], "val": ["d"], "test": ["e", "f"]}


def names(folds: list[GivenFold], *predictions: GivenPredictions, **known: dict[str, str]) -> dict[str, str]:
    return {one.name: one.level for one in audit(folds, predictions, **known).findings}


def predicted(slides: str, labels: list[int], scores: list[float], chosen: list[int] | None = None) -> GivenPredictions:
    own = None if chosen is None else np.array(chosen)
    return GivenPredictions("p.csv", list(slides), np.array(labels), np.array(scores), own)


def test_a_sound_split_has_no_findings() -> None:
    assert names([GivenFold("0", SOUND)]) == {}
    assert names([GivenFold("0", SOUND)], predicted("ef", [0, 1], [0.2, 0.8], [0, 1])) == {}


def test_leaks_between_the_sets() -> None:
    assert names([GivenFold("0", {**SOUND, "test": ["e", "a.svs"]})]) == {"slides on both sides": "error"}
    patients = {"a": "p1", "e": "p1", "d": "p2", "b": "p2"}
    found = audit([GivenFold("0", SOUND)], patients=patients).findings
    assert [(one.level, one.name) for one in found] == [
        ("error", "patients on both sides"), ("warning", "patients on both sides"),
    ]  # fmt: skip
    assert "p1" in found[0].message
    assert names([GivenFold("0", {**SOUND, "val": []})]) == {"no validation set": "warning"}
    assert names([GivenFold("0", {**SOUND, "train": ["a", "a.h5", "b"]})]) == {"duplicates": "warning"}
    sites = {"a": "x", "b": "y", "c": "y", "d": "y", "e": "x", "f": "z"}
    (site,) = audit([GivenFold("0", SOUND)], sites=sites).findings
    assert site.message.startswith("50% of the test slides")


def test_tcga_barcodes_say_patient_and_site() -> None:
    fold = {
        "train": ["TCGA-AA-0001-01Z-00-DX1.0A"],
        "val": ["TCGA-BB-0002-01Z"],
        "test": ["TCGA-AA-0001-01Z-00-DX2.FF"],
    }
    assert names([GivenFold("0", fold)]) == {"patients on both sides": "error", "sites on both sides": "warning"}


def test_what_predictions_show() -> None:
    folds = [GivenFold("0", SOUND)]
    assert names(folds, predicted("efa", [0, 1, 1], [0.1, 0.9, 0.8])) == {"training slides scored": "error"}
    assert names(folds, predicted("eef", [0, 0, 1], [0.1, 0.1, 0.8])) == {"predicted twice": "error"}
    assert names(folds, predicted("e", [0], [0.1])) == {"test slides missing": "warning"}
    more = [GivenFold("0", {**SOUND, "test": list("efgh")})]
    tuned = predicted("efgh", [0, 0, 1, 1], [0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1])
    assert names(more, tuned) == {"threshold fits test": "warning"}
    plain = predicted("efgh", [0, 0, 1, 1], [0.1, 0.2, 0.3, 0.6], [0, 0, 0, 1])
    assert names(more, plain) == {}
    mixed = predicted("efgh", [0, 0, 1, 1], [0.1, 0.2, 0.3, 0.6], [1, 0, 1, 0])
    assert names(more, mixed) == {"no single threshold": "warning"}


def test_the_command_reads_clams_files_and_scores_them_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "splits").mkdir()
    (tmp_path / "eval").mkdir()
    aurocs = []
    for k in range(2):
        test, train = range(k * 20, k * 20 + 20), range(40 - k * 20 - 20, 60 - k * 20 - 20)
        rows = [
            f"{i},s{a},{f's{40 + i}' if i < 5 else ''},s{b}" for i, (a, b) in enumerate(zip(train, test, strict=True))
        ]
        (tmp_path / "splits" / f"splits_{k}.csv").write_text("\n".join([",train,val,test", *rows]), encoding="utf-8")
        labels, scores = np.arange(20) % 2, rng.uniform(size=20)
        table = [f"{i},s{s},{y}.0,{p:.6f}" for i, (s, y, p) in enumerate(zip(test, labels, scores, strict=True))]
        (tmp_path / "eval" / f"fold_{k}.csv").write_text("\n".join([",slide_id,Y,p_1", *table]), encoding="utf-8")
        aurocs.append(roc_auc_score(labels, np.round(scores, 6)))
    asked = ["audit", "--splits", str(tmp_path / "splits"), "--predictions", str(tmp_path / "eval")]
    assert app([*asked, "--json"], exit_on_error=False, result_action="return_value") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sound"]
    assert found["slides"] == 45
    assert list(found["auroc"]["folds"].values()) == pytest.approx(aurocs)
    assert found["auroc"]["mean"] == pytest.approx(np.mean(aurocs))
    low, high = found["auroc"]["interval"]
    assert low < np.mean(aurocs) < high
    # Slides 0 and 20 are of one patient: each is in the other's training set.
    rows = [f"s{i},{'both' if i in (0, 20) else f'p{i}'}" for i in range(45)]
    (tmp_path / "slides.csv").write_text("\n".join(["slide,patient", *rows]), encoding="utf-8")
    again = [*asked, "--slides", str(tmp_path / "slides.csv"), "-o", str(tmp_path / "found.csv")]
    assert app(again, exit_on_error=False, result_action="return_value") == 1
    assert "error: splits_0: 1 patients have slides in train and test: both" in capsys.readouterr().out.replace("'", "")
    with open(tmp_path / "found.csv", newline="", encoding="utf-8") as file:
        assert {row["name"] for row in csv.DictReader(file)} == {"patients on both sides"}

"""The CAMELYON16 recipe end to end on made slides with the challenge's file names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dasmil.cli import app
from dasmil.paper.camelyon16 import MODELS, table_text
from dasmil.study.reading import run_loader

REFERENCE = Path(__file__).with_name("camelyon16_reference.csv")
PARAMETERS = {
    "max-pool": 769, "ab-mil": 8470, "sa": 27665, "sa-axial": 27665, "sa-fourier": 41009, "disc-rel-sa": 28025,
    "transmil": 2540561, "das-mil": 412251,
}  # fmt: skip


def test_every_model_of_the_table(camelyon: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = tmp_path / "reference.csv"
    reference.write_text(REFERENCE.read_text())
    out = tmp_path / "out"
    arguments = ["train", "--recipe", "camelyon16", "--features", camelyon, "--reference", reference]
    app([*map(str, arguments), "--epochs", "1", "--out", str(out)], exit_on_error=False, result_action="return_value")
    rows = json.loads((out / "table.json").read_text())
    assert {row["model"]: row["parameters"] for row in rows} == PARAMETERS
    assert [row["model"] for row in rows] == list(MODELS)
    das = rows[-1]
    assert das["paper_test_auroc"] == [0.914, 0.007]
    assert 0 <= das["test_auroc"][0] <= 1
    printed = capsys.readouterr()
    assert "CAMELYON16 train: 3 Normal, 3 Tumor" in printed.err
    assert "CAMELYON16 test: 2 Normal, 2 Tumor" in printed.err
    assert "2 left out as in the paper: normal_086, test_049" in printed.err
    assert "train: 3 Normal slides, expected 156" in printed.err
    assert "stride 224 px" in printed.err
    assert "| das-mil | 412,251 |" in printed.out
    config = json.loads((out / "das-mil" / "config.json").read_text())
    assert (config["training"]["optimizer"], config["training"]["lookahead"]) == ("radam", 6)
    assert config["training"]["weight_decay"] == 1e-5
    splits = json.loads((out / "das-mil" / "data.json").read_text())["splits"]
    assert splits["train"]["bag_ids"] == [
        "normal_001",
        "normal_002",
        "normal_003",
        "tumor_001",
        "tumor_002",
        "tumor_003",
    ]
    assert splits["test"]["bag_ids"] == ["test_001", "test_002", "test_003", "test_005"]


def test_the_test_set_of_a_run_is_found_again(
    camelyon: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = tmp_path / "reference.csv"
    reference.write_text(REFERENCE.read_text())
    common = ["train", "--recipe", "camelyon16", "--features", camelyon, "--reference", reference, "--epochs", 1]
    common += ["--model", "max-pool"]

    def run(*arguments: object) -> str:
        app([str(a) for a in arguments], exit_on_error=False, result_action="return_value")
        return capsys.readouterr().out

    run(*common, "--out", tmp_path / "one")
    opened = [json.loads(line) for line in (tmp_path / "reference.csv.test-log.jsonl").read_text().splitlines()]
    assert [line["run"] for line in opened] == [str(tmp_path / "one")]
    assert json.loads((tmp_path / "one" / "data.json").read_text())["test_set"].startswith("4 bags, opened 1 time (")
    run(*common, "--folds", 3, "--out", tmp_path / "folds")
    trained = json.loads((tmp_path / "one" / "summary.json").read_text())["splits"]["test"]
    assert json.loads(run("evaluate", tmp_path / "one", "--json"))["splits"]["test"] == trained
    assert json.loads(run("evaluate", tmp_path / "folds", "--json"))["splits"]["test"]["n"] == 4
    data = json.loads((tmp_path / "one" / "config.json").read_text())["data"]
    load = run_loader(data, None)
    assert [load("test", f"test_00{i}").label for i in (1, 2, 3)] == [1, 1, 0]
    assert load("train", "normal_002").label == 0


def test_table_shows_the_paper_beside() -> None:
    row = {"model": "das-mil", "parameters": 412251, "stuck_seeds": [1]}
    for split in ("train", "test"):
        for metric in ("auroc", "balanced_accuracy"):
            row |= {f"{split}_{metric}": [0.5, None], f"paper_{split}_{metric}": [0.914, 0.007]}
    line = table_text([row]).splitlines()[2]
    assert line == "| das-mil | 412,251 |" + " 0.500 (0.914 ± 0.007) |" * 4 + " 1 seeds |"

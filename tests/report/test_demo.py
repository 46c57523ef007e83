"""`dasmil demo` through its real entry point, in a small form."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dasmil.cli import demo as demo_verb
from dasmil.errors import InputError

DASMIL = Path(sys.executable).with_name("dasmil")


def run_demo(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    small = ["--quick", "--seeds", "2"]
    return subprocess.run(
        [DASMIL, "demo", *small, *map(str, arguments)],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.parametrize("given", ["--seeds=0", "--seeds=-1", "--epochs=0", "--bags=-3"])
def test_counts_of_none_are_refused_before_anything_is_made(given: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected at least 1"):
        demo_verb.app([given, "--out", str(tmp_path / "o")], exit_on_error=False, result_action="return_value")
    assert not (tmp_path / "o").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    out = tmp_path_factory.mktemp("demo") / "out"
    return out, run_demo("--out", out)


def test_it_trains_both_models_and_ends_with_table_and_path(finished: tuple[Path, subprocess.CompletedProcess[str]]):
    out, done = finished
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == str(out / "report.html")
    assert "two epochs learn nothing" in lines[-2]
    for model, name, paper in (("das-mil", "DAS-MIL", "0.958 ± 0.013"), ("sa", "self-attention", "0.848 ± 0.024")):
        scored = json.loads((out / model / "summary.json").read_text())["splits"]["test-large"]
        assert scored["n"] == 20
        first = next(i for i, line in enumerate(lines) if line.startswith(name))
        for metric, row in zip(("balanced_accuracy", "auroc"), lines[first : first + 2]):
            low, high = scored["interval"][metric]
            assert f"{scored['mean'][metric]:.3f} ± {scored['std'][metric]:.3f} ({low:.3f}–{high:.3f})" in row
        assert lines[first].endswith(paper)
    assert done.stderr.startswith("Training DAS-MIL and self-attention: 2 epochs each")
    assert max(map(len, lines[:5])) <= 80
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("demo", [[], ["--quick"], ["--slides"], ["--survival"]])
@pytest.mark.parametrize(("option", "number"), [("--seeds", -1), ("--seeds", 0), ("--epochs", 0), ("--bags", -3)])
def test_numbers_that_mean_nothing_are_refused_before_it_starts(
    demo: list[str], option: str, number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(InputError, match=f"^{option} is {number}, expected at least 1$"):
        demo_verb.app(
            [*demo, f"{option}={number}", "--out", str(tmp_path / "out")],
            exit_on_error=False, result_action="return_value",
        )  # fmt: skip
    assert not (tmp_path / "out").exists()
    assert capsys.readouterr() == ("", "")


def test_the_page_shows_what_the_issue_asks_for(finished: tuple[Path, subprocess.CompletedProcess[str]]):
    out, _ = finished
    text = (out / "report.html").read_text()
    labels = re.findall(r'aria-label="([^"]+)"', text)
    pictures = (
        "A positive and a negative collage",
        "What decided in the positive bag",
        "Attention map",
        "Learned distance function phi",
    )
    assert tuple(labels[:4]) == pictures
    assert re.search(r"The strongest, \d+ px\s+apart, gave [+-]\d", text)
    assert {"Learning curve: Training loss", "ROC curves", "Confusion matrix, test-large"} <= set(labels)
    assert ">80 px<" in text
    summary = json.loads((out / "das-mil" / "summary.json").read_text())["splits"]["test-large"]
    assert f"{summary['mean']['balanced_accuracy']:.3f}" in text
    assert not re.search(r"https?:|<link|<img|\bsrc=", text)
    assert "mnist-collage/test-large/0000" in text


def test_machines_get_the_same_results_as_json(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    out, _ = finished
    monkeypatch.setattr(demo_verb, "prepare_folder", lambda _: None)
    monkeypatch.setattr(demo_verb, "train_side_by_side", lambda *_: None)  # the runs are there already
    assert demo_verb.demo(out=out, json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["report"] == str(out / "report.html")
    assert found["runs"]["sa"] == json.loads((out / "sa" / "summary.json").read_text())
    assert found["paper"]["das-mil"]["auroc"] == [0.992, 0.009]


def test_a_second_demo_replaces_the_runs_of_the_first_and_nothing_else(tmp_path: Path):
    demo_verb.prepare_folder(tmp_path)
    (tmp_path / "sa" / "summary.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    demo_verb.prepare_folder(tmp_path)
    assert not (tmp_path / "sa" / "summary.json").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_run_that_is_not_a_demo_is_left_alone(tmp_path: Path):
    (tmp_path / "sa").mkdir()
    (tmp_path / "sa" / "config.json").write_text("{}")
    done = run_demo("--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")
    assert "was not made by dasmil demo" in done.stderr
    assert (tmp_path / "sa" / "config.json").exists()
    assert not (tmp_path / "das-mil").exists()

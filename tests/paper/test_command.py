"""The command line of `dasmil reproduce`."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree

import pytest

from dasmil.cli.reproduce import app
from dasmil.errors import InputError
from dasmil.paper.reproduce import Folders
from dasmil.paper.text import NOT_RUN, QUICK


def run(*arguments: object) -> int:
    return app([str(a) for a in arguments], exit_on_error=False, result_action="return_value")


def test_nothing_asked_for_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--out", tmp_path) == 2
    assert "nothing to reproduce" in capsys.readouterr().err


def test_check_prints_its_verdict(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--check", "--results", stored) == 0
    assert "1 cells recomputed from their predictions: all agree" in capsys.readouterr().out
    manifest = next(stored.glob("collage/*/*.json"))
    manifest.write_text(manifest.read_text().replace('"positives": 50', '"positives": 49'))
    assert run("--check", "--results", stored, "--json") == 1
    (reasons,) = json.loads(capsys.readouterr().out)["wrong"].values()
    assert reasons == ["test positives: stored 49, recomputed 50"]


def test_tables_only_trains_nothing(trained: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("collage", "--tables", "--results", trained.results, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["claims"][0] == "1 of 40 cells have been run."
    assert str(trained.results / "published.html") in found["files"]


def test_a_quick_run_says_what_it_is_and_shows_what_was_run(
    trained: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(trained.results, tmp_path / "quick" / "results")
    assert run("collage", "--quick", "--tables", "--out", tmp_path) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == QUICK
    assert said[1] == "1 of 40 cells have been run."
    page = (tmp_path / "quick" / "results" / "published.html").read_text()
    assert f"{QUICK} Only rows that were run are shown." in page
    assert NOT_RUN not in page
    assert run("collage", "--tables", "--results", tmp_path / "quick" / "results") == 0
    assert NOT_RUN in (tmp_path / "quick" / "results" / "published.html").read_text()


def test_tables_of_everything_do_not_need_the_model_of_the_figure(
    trained: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("all", "--tables", "--results", trained.results, "--out", tmp_path) == 0
    assert "holds no trained model for the attention figure" in capsys.readouterr().out
    with pytest.raises(InputError, match="holds no trained model"):
        run("attention-figure", "--tables", "--results", trained.results, "--out", tmp_path)


def test_wrong_names_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Did you mean 'mnist-collage'"):
        run("collage", "--data", "mnist-colage", "--out", tmp_path)
    with pytest.raises(InputError, match="--models needs one table"):
        run("all", "--models", "sa", "--out", tmp_path)
    with pytest.raises(InputError, match="Did you mean 'sa'"):
        run("collage", "--models", "sx", "--out", tmp_path)
    with pytest.raises(InputError, match="--seeds is 0, expected at least 1"):
        run("collage", "--seeds", "0", "--out", tmp_path)
    assert not list(tmp_path.iterdir())

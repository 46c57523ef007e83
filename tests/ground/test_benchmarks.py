"""Figures of the benchmarks beside their goals, and what an installation without the source tree says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dasmil
from benchmarks.figures import GOALS, Figures, Goal
from dasmil.cli.bench import BENCHES


def test_a_goal_is_missed_met_or_better() -> None:
    fast = Goal(at_least=3, stretch=4)
    assert [fast.met(value) for value in (2.9, 3, 4, float("nan"))] == ["missed", "met", "stretch", "missed"]
    small = Goal(at_most=3, stretch=1)
    assert [small.met(value) for value in (3.1, 3, 1, float("nan"))] == ["missed", "met", "stretch", "missed"]


def test_one_missed_goal_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    figures = Figures("training", "Title")
    figures.add("speed", 5.0, "x", goal="gain_5")
    assert figures.show(json=False) == 0
    figures.add("memory", 1e4, "MB", goal="peak_mb")
    figures.add("seconds", 1.0, "s")
    capsys.readouterr()
    assert figures.show(json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert [row["value"] for row in found["figures"]] == [5.0, 1e4, 1.0]
    assert found["figures"][0]["goal"] == {"at_least": 3, "at_most": None, "stretch": None}
    assert figures.show(json=False) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].split() == ["speed", "5.00", "x", ">=", "3.00", "met"]
    assert lines[5].split() == ["memory", "10,000", "MB", "<=", "700", "missed"]


def test_every_goal_belongs_to_a_bench_and_has_one_limit() -> None:
    assert set(GOALS) <= set(BENCHES)
    goals = [Goal(**goal) for bench in GOALS.values() for goal in bench.values()]
    assert len(goals) > 20
    assert all((goal.at_most is None) != (goal.at_least is None) for goal in goals)


def test_without_the_source_tree_one_line_says_where_the_benchmarks_are(tmp_path: Path) -> None:
    copy = tmp_path / "lib" / "packages" / "dasmil"
    sources = Path(dasmil.__file__).parent
    shutil.copytree(sources, copy, ignore=lambda _, names: [n for n in names if n == "__pycache__"])
    command = [sys.executable, "-c", "from dasmil.cli import main; main()", "bench", "attention", "--quick"]
    environment = os.environ | {"PYTHONPATH": str(copy.parent)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "get the source tree of dasmil" in line

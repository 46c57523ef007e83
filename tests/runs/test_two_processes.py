"""Two `dasmil train` on one folder: both end well or one is refused, and the files are those of one undisturbed run."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dasmil.data.synthetic import MadeCohort, write_made_cohort

DESIGN = MadeCohort(tiles=(30, 50), islands=(1, 1), island_tiles=(2, 3), in_features=8, distance_um=800)
SCRIPT = """
import sys
import dasmil.cli.train, dasmil.report, dasmil.study.training, dasmil.train.fit, torch
from dasmil.cli import main
print("ready", flush=True)
sys.stdin.readline()
main()
"""
PASSING = {"seconds", "status"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_made_cohort(folder, 24, seed=1, design=DESIGN)
    return folder


def waiting(made: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    """A command that has imported all it needs and begins when it is told to."""
    words = ["train", "--bags", made / "bags", "--labels", made / "labels.csv", "--out", out, "--threads", "1"]
    words += ["--seeds", "2", "--epochs", "10", "--set", "starts=2", "--set", "restarts=1", *more]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = process.communicate(timeout=300)
    return process.returncode, text


def lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: lasting(part) for key, part in value.items() if key not in PASSING}
    return [lasting(part) for part in value] if isinstance(value, list) else value


def content(file: Path, root: Path) -> object:
    """What a file says, without times and without the name of the folder; pages and checkpoints tell times."""
    if file.suffix == ".json":
        return lasting(json.loads(file.read_text().replace(str(root), "OUT")))
    if file.suffix == ".csv":
        with file.open(newline="") as rows:
            return [lasting(row) for row in csv.DictReader(rows)]
    if file.suffix == ".toml":
        lines = file.read_text().replace(str(root), "OUT").splitlines()
        return [line for line in lines if not line.startswith("resume")]
    if file.suffix == ".html" or file.name == "checkpoint.safetensors":
        return "there"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def contents(root: Path) -> dict[str, object]:
    return {str(p.relative_to(root)): content(p, root) for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def undisturbed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    out = tmp_path_factory.mktemp("whole") / "run"
    process = waiting(made, out)
    begin(process)
    code, text = end(process)
    assert code == 0, text
    found = contents(out)
    assert {"summary.json", "seed-0/model.safetensors", "seed-1/predictions.csv", "report.html"} <= found.keys()
    return found


@pytest.mark.parametrize("resume", [True, False])
def test_two_that_begin_at_once(made: Path, undisturbed: dict[str, object], tmp_path: Path, resume: bool) -> None:
    out = tmp_path / "run"
    both = [waiting(made, out, *(["--resume"] * resume)) for _ in range(2)]
    for process in both:
        begin(process)
    ended = [end(process) for process in both]
    assert "Traceback" not in ended[0][1] + ended[1][1]
    assert 0 in {code for code, _ in ended}, ended
    for code, text in ended:
        assert code == 0 or (code == 2 and not resume and "already holds this run" in text), text
    assert contents(out) == undisturbed


@pytest.mark.parametrize("resume", [True, False])
def test_one_that_comes_while_another_trains(
    made: Path, undisturbed: dict[str, object], tmp_path: Path, resume: bool
) -> None:
    out = tmp_path / "run"
    second, first = waiting(made, out, *(["--resume"] * resume)), waiting(made, out)
    begin(first)
    until = time.monotonic() + 120
    while not (out / "checkpoint.safetensors").exists():
        assert first.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    begin(second)
    code, text = end(second)
    if resume:
        assert code == 0, text
    else:
        assert code == 2
        assert "already holds this run (das-mil on" in text
        assert "continue it with --resume" in text
    code, text = end(first)
    assert code == 0, text
    assert contents(out) == undisturbed

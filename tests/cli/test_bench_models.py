"""`dasmil bench models`: a row for every model that was asked for, and wrong names before anything is measured."""

import json
import subprocess
import sys


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from dasmil.cli import main; main()", "bench", "models", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_every_model_has_a_row_and_is_told_when_it_is_measured() -> None:
    result = bench("--instances", "60", "--models", "sa,clam-sb", "--json")
    assert result.returncode == 0
    rows = json.loads(result.stdout)["models"]
    assert [row["model"] for row in rows] == ["sa", "clam-sb"]
    assert all(row["seconds"] > 0 and row["extra_mib"] >= 0 for row in rows)
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["sa", "clam-sb"]


def test_an_unknown_model_is_refused_before_others_are_measured() -> None:
    result = bench("--models", "sa,clam")
    assert result.returncode == 2
    assert "unknown model 'clam'" in result.stderr
    assert "clam-sb" in result.stderr
    assert "MiB" not in result.stderr

"""No lower bound lets in a version with a known advisory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
SCRIPT = PROJECT / "scripts" / "floors_with_advisories.py"


def ask(project: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, project], capture_output=True, text=True, timeout=60)


def test_no_floor_has_a_known_advisory(tmp_path: Path) -> None:
    done = ask(PROJECT / "pyproject.toml")
    assert (done.returncode, done.stdout) == (0, "no floor lets in a version with an advisory that we know\n")
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    text = re.sub(r'"torch>=[\d.]+"', '"torch>=2.5"', text)
    text = re.sub(r'"jinja2>=[\d.]+"', '"jinja2"', text)
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    done = ask(tmp_path / "pyproject.toml")
    assert done.returncode == 1
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["jinja2", "torch>=2.5"]

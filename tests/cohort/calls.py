"""The command line as tests of cohorts call it, and the JSON files that it leaves."""

from __future__ import annotations

import json
from pathlib import Path

from dasmil.cli import app


def run(*arguments: object) -> int:
    return app([str(a) for a in arguments], exit_on_error=False, result_action="return_value") or 0


def read(path: Path) -> dict:
    return json.loads(path.read_text())

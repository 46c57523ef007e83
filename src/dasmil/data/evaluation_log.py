"""How often a locked test set was opened: one line each time, in a file beside the labels."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dasmil.errors import DataError


def log_path(labels: Path) -> Path:
    """The log of a label table (or folder of bags): beside it, so that all runs on the same data share it."""
    return labels.with_name(labels.name + ".test-log.jsonl")


def log_evaluation(labels: Path, fingerprint: str, run: str) -> int:
    """Note an evaluation on the test set with this fingerprint; returns how many there are now.

    The test set is not opened if it cannot be noted.
    """
    path = log_path(labels)
    line = json.dumps({"test_set": fingerprint, "run": run, "time": datetime.now(UTC).isoformat(timespec="seconds")})
    try:
        # One short write in append mode: lines of processes that run at the same time do not mix.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(handle, (line + "\n").encode())
        finally:
            os.close(handle)
    except OSError as error:
        raise DataError(f"the test set stays locked, because {path} cannot be written ({error})") from None
    return len(evaluations(labels, fingerprint))


def evaluations(labels: Path, fingerprint: str) -> list[dict[str, Any]]:
    """All noted evaluations on a test set, oldest first."""
    path = log_path(labels)
    if not path.is_file():
        return []
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            raise DataError(f"{path}, line {number} is not JSON: the log of test evaluations was damaged") from None
        if entry.get("test_set") == fingerprint:
            found.append(entry)
    return found

"""Study files below a folder, started as commands of their own and stopped again: for the page of all runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dasmil.errors import InputError

COMMANDS = ("train", "search", "compare")
"""What the page may start: commands that write runs."""
TAIL_BYTES, TAIL_LINES = 4096, 4
MOST_BYTES = 1_000_000
"""A larger TOML file is no study and is not listed."""


@dataclass
class Starter:
    """Starts and stops the studies below a folder; what it started goes on when the page ends.

    A study's output goes to a file beside it: study.toml writes study.log.
    """

    folder: Path
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def studies(self) -> list[dict[str, Any]]:
        """Every study file by its path below the folder: its command, whether it runs, and the end of its output."""
        found = []
        for path in sorted(self.folder.rglob("*.toml")):
            command = _command(path)
            if command is None:
                continue
            name = path.relative_to(self.folder).as_posix()
            process = self._running.get(name)
            code = None if process is None else process.poll()
            found.append(
                {
                    "name": name,
                    "command": command,
                    "running": process is not None and code is None,
                    "exit_code": code,
                    "can_resume": command == "train",
                    "output": _tail(path.with_suffix(".log")),
                }
            )
        return found

    def start(self, name: str, resume: bool = False) -> None:
        """Start a study that is listed; resume: go on with a training that was stopped."""
        path = self._path(name)
        with self._lock:
            if (before := self._running.get(name)) is not None and before.poll() is None:
                raise InputError(f"the study {name!r} runs already")
            command = [sys.executable, "-m", "dasmil", "run", str(path), *(["--resume"] if resume else [])]
            with path.with_suffix(".log").open("wb") as log:
                self._running[name] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )

    def stop(self, name: str) -> None:
        """Stop a study as Ctrl-C does, so that it can be resumed; only one that was started here."""
        process = self._running.get(name)
        if process is None or process.poll() is not None:
            raise InputError(f"the study {name!r} was not started from this page, or has ended")
        process.send_signal(signal.SIGINT)

    def running(self) -> list[str]:
        """The studies that were started here and have not ended."""
        return [name for name, process in self._running.items() if process.poll() is None]

    def _path(self, name: str) -> Path:
        if name not in {study["name"] for study in self.studies()}:
            raise InputError(f"there is no study {name!r} here")
        return self.folder / name


def _command(path: Path) -> str | None:
    """The command of a study file; None of other files."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        found = tomllib.loads(path.read_text(encoding="utf-8-sig")).get("command")
    except (OSError, ValueError, RecursionError):
        return None
    return found if found in COMMANDS else None


def _tail(path: Path) -> list[str]:
    """The last lines of a study's output; of a line that was drawn over, what stood there last."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return [line for line in lines if line][-TAIL_LINES:]

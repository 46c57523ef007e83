"""The door for HDF5 files: a child process looks first, because libhdf5 can hang or crash on a damaged file."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from dasmil.data import inspect_hdf5
from dasmil.errors import DasmilError, DataError

_Identity = tuple[str, int, int, int, int]


def check_hdf5(path: Path) -> None:
    """Refuse a file that is damaged, links elsewhere, was never finished or unpacks to far more than is stored.

    A file is looked at once, until it changes.
    """
    state = path.stat()
    identity = (str(path), state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
    with _LOCK:
        if identity not in _SEEN:
            _SEEN[identity] = _inspector().ask(path)
        refused = _SEEN[identity]
    if refused is not None:
        raise DataError(f"{path}: {refused}; make it again")


class _Inspector:
    """A running child; after a file that ended it the next one gets a new child."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, "-P", inspect_hdf5.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            bufsize=0,
        )
        assert self.process.stdin
        assert self.process.stdout
        self.questions, self.answers = self.process.stdin, self.process.stdout
        if self.answers.readline() != b"ready\n":
            raise DasmilError(
                f"the process that checks HDF5 files could not be started with {sys.executable}: "
                "see whether `python -c 'import h5py'` works there"
            )

    @property
    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def ask(self, path: Path) -> str | None:
        """The reason to refuse a file, or None."""
        try:
            self.questions.write(json.dumps(str(path.absolute())).encode() + b"\n")
            answer = self.answers.readline()
        except BrokenPipeError:
            answer = b""
        if answer:
            return json.loads(answer)
        code = self.process.wait()
        if code == -signal.SIGPROF:
            return "damaged HDF5 file: the HDF5 library came to no end with it"
        if code == -signal.SIGALRM:
            return f"the file was not read through within {inspect_hdf5.SECONDS} seconds"
        return f"damaged HDF5 file: the HDF5 library failed on it (code {code})"

    def close(self) -> None:
        """End the child; in a process that was forked from its owner only the pipes are let go."""
        self.questions.close()
        self.answers.close()
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()


_LOCK = threading.Lock()
_SEEN: dict[_Identity, str | None] = {}
_RUNNING: list[_Inspector] = []


def _inspector() -> _Inspector:
    if not _RUNNING or not _RUNNING[0].alive:
        _close()
        _RUNNING.append(_Inspector())
    return _RUNNING[0]


def _close() -> None:
    while _RUNNING:
        _RUNNING.pop().close()


def _after_fork() -> None:
    """A forked process starts a child of its own, and must not wait for a lock that a lost thread holds."""
    global _LOCK
    _LOCK = threading.Lock()
    _close()


atexit.register(_close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

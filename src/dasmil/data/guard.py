"""The door for HDF5 files and zarr folders: a child process looks first, because their libraries can hang or crash."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from dasmil.data import inspect_files
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


def check_zarr(folder: Path) -> None:
    """Refuse a zarr folder with a piece that cannot be decoded within limits of time and memory."""
    with _LOCK:
        refused = _inspector().ask(folder)
    if refused is not None:
        raise DataError(f"{folder}: {refused}; save it again")


class _Inspector:
    """A running child; after a file that ended it the next one gets a new child."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, "-P", inspect_files.__file__],
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
                f"the process that checks files could not be started with {sys.executable}: "
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
        kind, limits = ("HDF5 file", inspect_files.HDF5_LIMITS)
        if path.is_dir():
            kind, limits = "zarr folder", inspect_files.ZARR_LIMITS
        if code == -signal.SIGPROF:
            return f"damaged {kind}: the library that reads it came to no end within {limits[0]} seconds"
        if code == -signal.SIGALRM:
            return f"the {kind} was not read through within {limits[1]} seconds"
        return f"damaged {kind}: the library that reads it failed (code {code})"

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

"""Locks of the operating system, which die with their holder: no lock is ever stale, and the dead are known."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from uuid import uuid4

LockState = Literal["held", "busy", "unsupported"]
MARK = ".mark"
HOST = re.sub(r"\W", "_", socket.gethostname())
_BUSY = {errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK}


@contextmanager
def file_lock(path: Path) -> Iterator[LockState]:
    """Try to take the lock that belongs to a file name: "held", or "busy" elsewhere, or "unsupported" by the disk.

    flock: works between processes of one machine and, on NFS, between machines. Disks without locks (some cluster file
    systems) answer "unsupported"; the work then goes on unguarded, which can waste time but not break a file, since
    every result is renamed into place when complete.
    """
    try:
        import fcntl
    except ImportError:  # not a Unix
        yield "unsupported"
        return
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            yield "busy" if error.errno in _BUSY else "unsupported"
            return
        # The last holder removes the file: a lock on a file that is no longer there is worth nothing, so try again.
        try:
            if os.fstat(handle).st_ino == os.stat(path).st_ino:
                break
        except FileNotFoundError:
            pass
        os.close(handle)
    try:
        yield "held"
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


@contextmanager
def own_mark(folder: Path, kind: str) -> Iterator[Path]:
    """A new hidden file in folder that is there, and locked, as long as this process works; first clears the dead."""
    clear_dead(folder)
    while True:
        mark = folder / f".{kind}-{HOST}-{uuid4().hex[:12]}{MARK}"
        with file_lock(mark) as state:
            if state == "busy":  # another process took it for a dead one's before it was locked
                continue
            mark.touch()
            try:
                yield mark
            finally:
                _remove(mark)
        return


def clear_dead(folder: Path) -> None:
    """Remove the marks in folder, and what goes with them, of processes of this machine that were killed.

    Of this machine alone, because on some network file systems a lock is not seen by the others.
    """
    for mark in folder.glob(f".*-{HOST}-*{MARK}"):
        with file_lock(mark) as state:
            if state == "held":
                _remove(mark)


def mark_folder(mark: Path) -> Path:
    """The folder that its owner may make beside a mark; it is removed with it."""
    return mark.with_name(mark.name.removeprefix(".").removesuffix(MARK))


def _remove(mark: Path) -> None:
    shutil.rmtree(mark_folder(mark), ignore_errors=True)
    mark.unlink(missing_ok=True)

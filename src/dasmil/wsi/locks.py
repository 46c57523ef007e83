"""One process per slide: a lock of the operating system, which dies with its holder, so no lock is ever stale."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

LockState = Literal["held", "busy", "unsupported"]
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

"""How much memory bags may take, and how much is free, so that what does not fit is refused before it is tried."""

from __future__ import annotations

import os
from pathlib import Path

from dasmil.errors import DataError

MEMORY_GB = 1.0
"""Bags up to this size are kept in memory, unless the user says otherwise (``--set memory_gb=4``)."""


def available_memory() -> int:
    """Bytes that a new process can have without swapping."""
    info = Path("/proc/meminfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def need_memory(where: object, what: str, n_bytes: int) -> None:
    """Refuse what would not fit; where: the file."""
    free = available_memory()
    if n_bytes > free:
        raise DataError(
            f"{where}: {what} takes {n_bytes / 1e9:,.1f} GB of memory and {free / 1e9:,.1f} GB are free; "
            "use a machine with more, or fewer instances"
        )

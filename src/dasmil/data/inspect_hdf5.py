"""The program of the child process that looks at HDF5 files before this process does (guard.py starts it).

It runs as a file of its own and imports nothing of dasmil. A path comes in as one line of JSON; a reason to refuse the
file, or null, goes out. libhdf5 can loop or crash on a damaged file, and reads what another file holds where a link
says so: then this process ends, and not the one that trains.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from math import ceil, prod

import h5py
from h5py import h5o  # pyright: ignore[reportAttributeAccessIssue]

CPU_SECONDS, SECONDS = 5, 25  # the first for loops of the library, the second for disks that do not answer
MEMORY_BYTES = 4 << 30
# Zeros compress a thousandfold, features of a network hardly at all: below the size any ratio is believed.
BELIEVED_BYTES, BELIEVED_RATIO = 256 << 20, 100
OBJECTS = 200_000


def refusal(path: str) -> str | None:
    """Why a file is not read; None for one that may be."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            return next(problems(file), None)
    except Exception as error:
        return f"truncated or damaged HDF5 file ({reason(error)})"


def problems(file: h5py.File) -> Iterator[str]:
    """Walk all that a file holds, its attributes included; every link is looked at before it is followed."""
    seen: set[int] = set()
    waiting: list[h5py.Group] = [file]
    while waiting:
        group = waiting.pop()
        touch_attributes(group)
        for name in map(str, group):
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                yield f"{shown(name)} is a link to another place or file, which is not followed: copy the data into it"
                continue
            item = group[name]
            address = h5o.get_info(item.id).addr
            if address in seen:
                continue
            seen.add(address)
            if len(seen) > OBJECTS:
                yield f"it holds more than {OBJECTS:,} objects"
                return
            if isinstance(item, h5py.Group):
                waiting.append(item)
            elif isinstance(item, h5py.Dataset):
                touch_attributes(item)
                yield from dataset_problems(shown(name), item)


def dataset_problems(name: str, item: h5py.Dataset) -> Iterator[str]:
    """What is wrong with how a dataset is kept: elsewhere, never written, or a little that becomes very much."""
    if item.is_virtual or item.external:
        yield f"the data of {name} lie in other files, which are not followed: copy them into this one"
        return
    if item.shape is None or not item.size:
        return
    declared, stored = prod(item.shape) * item.dtype.itemsize, item.id.get_storage_size()
    if item.chunks is not None:
        expected = prod(ceil(size / chunk) for size, chunk in zip(item.shape, item.chunks))
        unfinished = item.id.get_num_chunks() < expected
    else:
        unfinished = stored < declared
    shape = " x ".join(map(str, item.shape))
    if unfinished:
        yield f"{name} is declared as {shape}, but was never written in full ({stored:,} of {declared:,} bytes)"
    elif declared > BELIEVED_BYTES and declared > BELIEVED_RATIO * stored:
        yield f"{name} is declared as {shape} ({declared:,} bytes), but only {stored:,} bytes are stored"


def touch_attributes(item: h5py.Group | h5py.Dataset) -> None:
    for name in map(str, item.attrs):
        found = item.attrs.get_id(name)
        if found.get_space().get_simple_extent_npoints() * found.get_type().get_size() > MEMORY_BYTES // 64:
            raise ValueError(f"attribute {shown(name)} is larger than 64 MB")
        item.attrs[name]


def shown(name: str) -> str:
    return repr(name if len(name) <= 60 else name[:60] + "...")


def reason(error: Exception) -> str:
    return " ".join((str(error).strip("'\"") or type(error).__name__).split())[:200]


def main() -> None:
    """Answer until the pipe ends; a file that takes too long or too much ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):  # a system without limits of memory: the limit of time remains
        pass
    print("ready", flush=True)
    for line in sys.stdin:
        # The default action of both ends the process, even inside a loop of the library.
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.alarm(SECONDS)
        answer = refusal(json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

"""The program of the child process that looks at HDF5 files and zarr folders before this process does.

guard.py starts it. It runs as a file of its own and imports nothing of dasmil. A path comes in as one line of JSON; a
reason to refuse the file, or null, goes out. libhdf5 and the libraries that unpack pieces of zarr arrays can loop or
crash on damaged bytes: then this process ends, and not the one that trains.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from math import ceil, prod
from typing import Any

import h5py
from h5py import h5o  # pyright: ignore[reportAttributeAccessIssue]

# Seconds of computing, for loops of a library, and seconds in all, for disks that do not answer. A zarr folder is
# decoded to its end, an HDF5 file is not.
HDF5_LIMITS, ZARR_LIMITS = (5, 25), (120, 600)
MEMORY_BYTES = 4 << 30
# Zeros compress a thousandfold, features of a network hardly at all: below the size any ratio is believed.
BELIEVED_BYTES, BELIEVED_RATIO = 256 << 20, 100
OBJECTS = 200_000


def refusal(path: str) -> str | None:
    """Why a file or folder is not read; None for one that may be."""
    return zarr_refusal(path) if os.path.isdir(path) else hdf5_refusal(path)


def zarr_refusal(path: str) -> str | None:
    """Decode every piece; zarr_folder.py has checked the names of the codecs before."""
    import zarr

    try:
        waiting: list[Any] = [zarr.open_group(path, mode="r")]
        while waiting:
            item = waiting.pop()
            if isinstance(item, zarr.Group):
                waiting += [item[name] for name in item]
            elif not item.shape:
                item[()]
            else:
                step = max(item.chunks[0], 1)
                for start in range(0, item.shape[0], step):  # no more than a row of pieces at a time
                    item[start : start + step]
    except Exception as error:
        return f"damaged zarr folder ({reason(error)})"
    return None


def hdf5_refusal(path: str) -> str | None:
    """Walk through a file without reading its arrays."""
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
        path = json.loads(line)
        computing, waiting = ZARR_LIMITS if os.path.isdir(path) else HDF5_LIMITS
        signal.setitimer(signal.ITIMER_PROF, computing)
        signal.alarm(waiting)
        answer = refusal(path)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

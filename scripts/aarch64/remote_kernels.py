"""A pytest plugin: every call of a kernel runs in the program of KERNEL_SERVER instead (see kernels_on_aarch64.sh)."""

from __future__ import annotations

import atexit
import ctypes
import os
import shlex
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dasmil.ops import library

DAS_FORWARD, DAS_BACKWARD, CONV_FORWARD, CONV_BACKWARD, DAS_HAS, ABOUT = range(6)
KEPT = ("shift", "share", "g_sum", "m_sum")  # results of forward, read by backward


def das_bytes(p: Any, name: str) -> int:
    """Bytes behind a pointer of das_problem, as das_attention.h tells their shapes."""
    items, points = p.bags * p.heads, p.n
    widths = {"query": p.d, "key": p.d, "value": p.o, "out": p.o}
    embeddings = {"key_embed": 2 * p.d, "query_embed": 2 * p.d, "value_embed": 2 * p.o}
    of_a_head = {"theta": 1, "beta": 1, "bias_scale": 1, "bias_table": p.bins, **embeddings}
    of_a_bag = {"coords": 4 * points * p.axes, "mask": points, "section": 8 * points, "order": 8 * points}
    whole = {"bias_edges": 4 * (p.bins - 1), "seeds": 8 * p.seed_count, "reach": 8 * p.heads}
    bare = name.removeprefix("d_")
    if name in KEPT:
        return 4 * items * points
    if bare in widths:
        return 4 * items * points * widths[bare]
    if name in of_a_head:
        return 4 * p.heads * of_a_head[name] * (p.bags if getattr(p, f"{name}_step") else 1)
    if bare in of_a_head:  # a gradient has every bag
        return 4 * items * of_a_head[bare]
    if name in of_a_bag:
        return of_a_bag[name] * (p.bags if getattr(p, f"{name}_step") else 1)
    return whole[name]


def conv_bytes(p: Any, name: str) -> int:
    """Bytes behind a pointer of conv_pool_problem."""
    pooled = p.runs * p.images * p.out_channels * ((p.side - 4) // 2) ** 2
    sizes = {
        "x": 4 * p.runs * p.images * p.in_channels * p.side**2, "weight": 100 * p.runs * p.out_channels * p.in_channels,
        "bias": 4 * p.runs * p.out_channels, "out": 4 * pooled, "winner": pooled,
    }  # fmt: skip
    return sizes[name.removeprefix("d_")]


class Server:
    """The other program, started on first use; counts its calls."""

    def __init__(self) -> None:
        command = shlex.split(os.environ["KERNEL_SERVER"])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1 << 20)
        self.calls = 0
        atexit.register(self.end)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        with Path(os.environ["KERNEL_CALLS"]).open("a") as log:
            log.write(f"{self.calls}\n")

    def ask(self, *numbers: int) -> int:
        self.send(struct.pack(f"<{len(numbers)}q", *numbers))
        return self.answer()

    def send(self, *parts: bytes) -> None:
        assert self.process.stdin is not None
        for part in parts:
            self.process.stdin.write(part)
        self.process.stdin.flush()

    def receive(self, size: int) -> bytes:
        assert self.process.stdout is not None
        found = self.process.stdout.read(size)
        if len(found) != size:
            raise RuntimeError(f"the kernel's program ended (exit code {self.process.wait()})")
        return found

    def answer(self) -> int:
        return struct.unpack("<q", self.receive(8))[0]

    def call(self, operation: int, problem: ctypes.Structure, size: Callable[[Any, str], int], results: Any) -> int:
        """Send the problem and its arrays, put the results where the problem's pointers say."""
        pointers = [n for n, kind, *_ in problem._fields_ if kind is ctypes.c_void_p and n != "scratch"]
        there = [name for name in pointers if getattr(problem, name)]
        parts = [struct.pack("<2q", operation, ctypes.sizeof(problem)), bytes(problem), struct.pack("<q", len(there))]
        for name in there:
            place, length = getattr(type(problem), name).offset, size(problem, name)
            parts.append(struct.pack("<3q", place, length, results(name)))
            parts += [] if results(name) else [ctypes.string_at(getattr(problem, name), length)]
        self.send(*parts)
        status = self.answer()
        for name in there:
            if results(name):
                content = self.receive(size(problem, name))
                ctypes.memmove(getattr(problem, name), content, len(content))
        self.calls += 1
        return status


class RemoteLibrary:
    """What library.load gives, with the functions that the operators call."""

    def __init__(self, server: Server, problem: type[ctypes.Structure]) -> None:
        self.server, self.problem = server, problem
        self.das_scratch = _Function(lambda address, backward: 64)  # the server has its own

    def das_has(self, isa: ctypes.c_int64) -> int:
        return self.server.ask(DAS_HAS, isa.value)

    def das_has_openmp(self) -> int:
        return self.server.ask(ABOUT, 2)

    def das_forward(self, address: int) -> int:
        results = ("out", *KEPT)
        return self.server.call(DAS_FORWARD, self.problem.from_address(address), das_bytes, lambda n: n in results)

    def das_backward(self, address: int) -> int:
        found = self.problem.from_address(address)
        return self.server.call(DAS_BACKWARD, found, das_bytes, lambda n: n.startswith("d_") and n != "d_out")

    def conv_pool_forward(self, reference: Any) -> int:
        results = ("out", "winner")
        return self.server.call(CONV_FORWARD, reference._obj, conv_bytes, lambda n: n in results)

    def conv_pool_backward(self, reference: Any) -> int:
        results = lambda n: n.startswith("d_") and n != "d_out"  # noqa: E731
        return self.server.call(CONV_BACKWARD, reference._obj, conv_bytes, results)


class _Function:
    """A function that takes the attributes ctypes functions have."""

    def __init__(self, function: Callable[..., int]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> int:
        return self.function(*arguments)


_server: list[Server] = []


def load(folder: Path, prefix: str, problem: type[ctypes.Structure]) -> Any:
    if not _server:
        _server.append(Server())
        assert _server[0].ask(ABOUT, 3) == 1, "the program was not compiled for aarch64 with NEON"
    size = _server[0].ask(ABOUT, 0 if prefix == "das" else 1)
    assert size == ctypes.sizeof(problem), (prefix, size)
    return RemoteLibrary(_server[0], problem)


library.load = load  # pyright: ignore[reportAttributeAccessIssue]

"""What the attention operator computes on one device, and how fast: the block that `dasmil doctor --device` prints."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

import dasmil
from dasmil.ops.das_attention import triton_backend, triton_trust
from dasmil.ops.das_attention.chunked import chunked
from dasmil.ops.das_attention.native import available, native, told
from dasmil.ops.das_attention.operands import Operands, Settings

Compute = Callable[[Operands, Settings], Tensor]
PLAIN_LIMIT = 5e-5
EMBEDDED = ("theta", "beta", "key_embed", "query_embed", "value_embed")
CASES: dict[str, tuple[int, tuple[str, ...], dict[str, Any]]] = {
    "one instance": (1, EMBEDDED, {}),
    "sigmoid": (130, EMBEDDED, {}),
    "identity": (130, EMBEDDED, {"phi": "identity"}),
    "exponential": (130, EMBEDDED, {"phi": "exponential"}),
    "gaussian": (130, EMBEDDED, {"phi": "gaussian"}),
    "everything": (
        130,
        (*EMBEDDED, "mask", "section"),
        {"product_term": True, "self_pair": False, "dropout_p": 0.3},
    ),
    "linear bias": (130, ("bias_scale",), {"bias": "linear"}),
    "gaussian bias": (130, ("bias_scale", "section"), {"bias": "gaussian"}),
    "cauchy bias": (130, ("bias_scale",), {"bias": "cauchy"}),
    "binned bias": (130, ("bias_table", "bias_edges", "mask"), {"bias": "bins"}),
    "radius": (700, (*EMBEDDED, "section"), {"radius": (0.4, 0.7)}),
}
SIZES = {"cuda": (1_000, 10_000, 50_000), "cpu": (200,), "mps": (1_000, 4_000)}


@dataclass(frozen=True)
class Parity:
    """One backend on one bag: the largest error relative to the largest number, against `chunked` in float64."""

    case: str
    d: int
    backend: str
    error: float
    of: str
    limit: float

    @property
    def agrees(self) -> bool:
        return self.error <= self.limit


@dataclass(frozen=True)
class Speed:
    """Milliseconds forward and backward, one head, the best of several."""

    n: int
    d: int
    backend: str
    milliseconds: float | None
    failed: str | None = None


@dataclass(frozen=True)
class DeviceReport:
    """Everything that an issue about a device needs."""

    about: dict[str, str]
    parity: list[Parity]
    speed: list[Speed]
    left_out: str | None

    @property
    def agrees(self) -> bool:
        return all(row.agrees for row in self.parity)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "agrees": self.agrees}

    def text(self) -> str:
        """One block of plain text to paste into an issue."""
        lines = ["dasmil doctor --device", *(f"{name}: {value}" for name, value in self.about.items())]
        if self.left_out:
            lines.append(f"Triton kernels left out: {self.left_out}")
        lines += ["", f"{'parity':<16}{'d':>4}  {'backend':<15}{'error':>8}{'limit':>8}"]
        for row in self.parity:
            wrong = "" if row.agrees else f"  WRONG: {row.of}"
            lines.append(f"{row.case:<16}{row.d:>4}  {row.backend:<15}{row.error:>8.0e}{row.limit:>8.0e}{wrong}")
        lines += ["", f"{'speed, n':<16}{'d':>4}  {'backend':<15}{'ms':>8}"]
        for row in self.speed:
            speed = f"  {row.failed}" if row.milliseconds is None else f"{row.milliseconds:>8.4g}"
            lines.append(f"{row.n:<16,}{row.d:>4}  {row.backend:<15}{speed}")
        wrong = sum(not row.agrees for row in self.parity)
        lines += ["", f"{len(self.parity) - wrong} of {len(self.parity)} results agree with chunked in float64"]
        return "\n".join(lines)


def check_device(device: torch.device, sizes: tuple[int, ...] | None = None) -> DeviceReport:
    """Parity of every backend that runs on the device, then its speed."""
    reason = triton_backend.unsupported(device, torch.float32, 64)
    backends: dict[str, tuple[Compute, float]] = {"chunked": (chunked, PLAIN_LIMIT)}
    if reason is None:
        for dot in triton_backend.DOTS:
            compute = functools.partial(triton_backend.fused, dot=dot)
            backends[f"triton {dot}"] = (compute, triton_trust.LIMITS[dot])
    if device.type == "cpu" and available():
        backends["native"] = (native, PLAIN_LIMIT)
    parity = [
        _parity(case, d, name, *backends[name], device)
        for d in (16, 64)
        for case in CASES
        for name in backends
        if d == 16 or case == "sigmoid"
    ]
    computes = {name: compute for name, (compute, _) in backends.items()} | {"plain attention": _plain}
    speed = [
        _speed(n, d, name, compute, device)
        for n in sizes or SIZES[device.type]
        for d in (16, 64)
        for name, compute in computes.items()
    ]
    return DeviceReport(about(device), parity, speed, reason)


def about(device: torch.device) -> dict[str, str]:
    """Versions and the device; no name of a machine, user or path."""
    versions = {"dasmil": dasmil.__version__, "torch": torch.__version__, "python": platform.python_version()}
    try:
        versions["triton"] = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        versions["triton"] = "not installed"
    lines = {"versions": ", ".join(f"{name} {version}" for name, version in versions.items())}
    lines |= {"system": f"{platform.system()} {platform.machine()}", "threads": str(torch.get_num_threads())}
    lines |= {"CPU kernel": told(), "device": str(device)}
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        capability = "" if torch.version.hip else f", compute capability {found.major}.{found.minor}"
        lines["device"] = f"{found.name}{capability}, {found.total_memory / 2**30:.0f} GiB"
        lines["toolkit"] = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return lines


def _bag(n: int, d: int, fields: tuple[str, ...], device: torch.device) -> Operands:
    one = torch.zeros(1, 1, d, device=device)
    given = dict.fromkeys(fields, torch.zeros(1, 5, device=device))  # small_bag looks at widths and at what is there
    return triton_trust.small_bag(Operands(one, one, one, torch.zeros(1, 2, device=device), **given), n)


def _parity(case: str, d: int, name: str, compute: Compute, limit: float, device: torch.device) -> Parity:
    n, fields, options = CASES[case]
    seeds = torch.tensor([0x1234567_89ABCDEF]) if "dropout_p" in options else None
    settings = Settings(
        options.get("phi", "sigmoid"), 1.0, 1.0, options.get("product_term", False), options.get("self_pair", True),
        options.get("dropout_p", 0.0), seeds, options.get("bias"), options.get("radius"),
    )  # fmt: skip
    try:
        error, of = triton_trust.largest_error(_bag(n, d, fields, device), settings, compute)
    except Exception as failure:  # whatever a compiler or a driver raises belongs into the report
        error, of = float("inf"), _first_line(failure)
    return Parity(case, d, name, error, of, limit)


def _plain(x: Operands, settings: Settings) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(x.query, x.key, x.value)


def _speed(n: int, d: int, name: str, compute: Compute, device: torch.device, rounds: int = 3) -> Speed:
    x = _bag(n, d, EMBEDDED, device)
    first = {field: t[:1] for field, t in x._asdict().items() if t is not None and field != "coords"}
    x = x._replace(**first)  # one head
    leaves = {field: t.requires_grad_() for field, t in x._asdict().items() if t is not None and field != "coords"}
    settings = Settings("sigmoid", d**-0.5, 1.0, False, True, 0.0, None)
    best = float("inf")
    try:
        for number in range(rounds + 1):  # the first one compiles
            _wait(device)
            start = time.perf_counter()
            compute(x, settings).sum().backward()
            _wait(device)
            if number:
                best = min(best, time.perf_counter() - start)
            for leaf in leaves.values():
                leaf.grad = None
    except Exception as failure:
        return Speed(n, d, name, None, _first_line(failure))
    return Speed(n, d, name, best * 1000)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _first_line(failure: Exception) -> str:
    return f"{type(failure).__name__}: {(str(failure).strip() or 'no message').splitlines()[0][:120]}"

"""A unit of work and its execution in a worker process."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from dasmil.engine.locks import own_mark
from dasmil.errors import DasmilError, InputError, unknown_name

EngineName = Literal["local", "ray", "slurm"]
Status = Literal["done", "failed", "crashed", "out-of-memory", "refused"]


@dataclass(frozen=True)
class Unit:
    """One call of `function` ("package.module:name") that leaves the file `result` when, and only when, it is complete.

    arguments: plain JSON values; lean: arguments to change for one more try after running out of memory.
    """

    key: str
    function: str
    arguments: dict[str, Any]
    result: str
    lean: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineOptions:
    """Where units run and what each may use."""

    engine: EngineName = "local"
    workers: int = 0  # units at once; 0: one per core or GPU of this machine, on a cluster what it takes
    threads: int = 1  # cores of one unit; fixed, so that results do not depend on the engine
    gpus: float = 0  # of one unit; a fraction shares a GPU (local and Ray)
    retries: int = 2  # of a unit that crashed or failed unexpectedly
    ray_address: str | None = None
    slurm_partition: str | None = None
    slurm_minutes: int = 60
    slurm_memory_gb: int = 16
    slurm_cluster: Literal["slurm", "local"] = "slurm"  # "local" runs the jobs as plain processes, for trying out

    def __post_init__(self) -> None:
        if self.engine not in get_args(EngineName):
            raise unknown_name("engine", self.engine, get_args(EngineName))
        most = {"workers": 10_000, "threads": 1024, "retries": 1000, "slurm_minutes": 10**6, "slurm_memory_gb": 10**5}
        for name, value in most.items():
            if getattr(self, name) > value:
                raise InputError(f"{name.replace('_', ' ')}: found {getattr(self, name)}, expected at most {value:,}")
        least = {"workers": 0, "threads": 1, "gpus": 0, "retries": 0, "slurm_minutes": 1, "slurm_memory_gb": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise InputError(f"{name.replace('_', ' ')}: found {getattr(self, name)}, expected {value} or more")
        if self.gpus > 1:
            raise InputError(f"gpus is {self.gpus:g}: a unit computes on one GPU, expected a number from 0 to 1")


@dataclass(frozen=True)
class UnitOutcome:
    """How one try of a unit ended."""

    key: str
    status: Status
    reason: str = ""


@dataclass(frozen=True)
class Session:
    """What every worker checks before it works: the same disk and the same code as the coordinator's."""

    token: str
    logs: str
    code: str
    threads: int
    folder: str = ""  # where the command was given: relative paths start here
    patience: float = 15.0  # seconds until the token must be seen elsewhere; network disks show new files late


@contextlib.contextmanager
def open_session(out: Path, options: EngineOptions) -> Iterator[Session]:
    """A session for one call of run_units; its token is gone when it ends, so units still queued stop by themselves."""
    logs = out.resolve() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with own_mark(logs, "session") as token:
        yield Session(str(token), str(logs), code_digest(), options.threads, os.getcwd())


@functools.cache
def code_digest(root: Path = Path(__file__).parent.parent) -> str:
    """Digest of the installed package's sources: a version number alone does not tell two checkouts apart."""
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".toml", ".cpp", ".h")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def execute(unit: Unit, session: Session) -> UnitOutcome:
    """Run one unit in this process, its output going to a log of its own; never raises for what the unit does."""
    place = f"host {os.uname().nodename}, process {os.getpid()}"
    if not _appears(Path(session.token), session.patience):
        folder = Path(session.logs).parent
        reason = f"the output folder is not shared: {place} does not see this run in {folder}; choose a folder on a "
        return UnitOutcome(unit.key, "refused", reason + "disk that every worker mounts at the same path")
    if code_digest() != session.code:
        reason = f"{place} has other code of dasmil than the coordinator; install the same version everywhere"
        return UnitOutcome(unit.key, "refused", reason)
    if Path(session.folder).is_dir():
        os.chdir(session.folder)
    os.environ["OMP_NUM_THREADS"] = str(session.threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(session.threads)
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in unit.key)
    with (
        open(Path(session.logs) / f"{name}.log", "a", encoding="utf-8", buffering=1) as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        print(json.dumps({"unit": unit.key, "at": place, "time": time.strftime("%Y-%m-%d %H:%M:%S")}))
        try:
            module, _, function = unit.function.partition(":")
            getattr(importlib.import_module(module), function)(**unit.arguments)
        except Exception as error:
            traceback.print_exc()
            if _out_of_memory(error):
                return UnitOutcome(unit.key, "out-of-memory", f"ran out of memory (see {log.name})")
            known = isinstance(error, DasmilError)
            reason = str(error) if known else f"{type(error).__name__}: {error} (see {log.name})"
            return UnitOutcome(unit.key, "failed" if known else "crashed", reason)
    if not Path(unit.result).exists():
        return UnitOutcome(unit.key, "crashed", f"ended without its result {unit.result}")
    return UnitOutcome(unit.key, "done")


def _out_of_memory(error: Exception) -> bool:
    """Python's, PyTorch's on GPUs, and PyTorch's on CPUs, which is a plain RuntimeError."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


def _appears(path: Path, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True

"""Runs units of work on this machine, on a Ray cluster or on Slurm; a unit turns arguments into one result file.

State lives in the output folder alone: a unit whose result file exists is done, whichever engine made it. A coordinator
that dies is started again, perhaps on another engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
import logging
import multiprocessing
import os
import shutil
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args
from uuid import uuid4

from dasmil.errors import DasmilError, InputError, MissingDependencyError, unknown_name

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
    workers: int = 0  # local processes, or Slurm tasks at once; 0: one per core / no limit
    threads: int = 1  # cores of one unit; fixed, so that results do not depend on the engine
    gpus: float = 0  # of one unit; a fraction shares a GPU (Ray)
    retries: int = 2  # of a unit that crashed or failed unexpectedly
    ray_address: str | None = None
    slurm_partition: str | None = None
    slurm_minutes: int = 60
    slurm_memory_gb: int = 16
    slurm_cluster: str = "slurm"  # "local" runs the jobs as plain processes, for trying out

    def __post_init__(self) -> None:
        if self.engine not in get_args(EngineName):
            raise unknown_name("engine", self.engine, get_args(EngineName))


@dataclass(frozen=True)
class Outcome:
    """How one try of a unit ended."""

    key: str
    status: Status
    reason: str = ""


@dataclass
class Progress:
    """How far a whole job is."""

    total: int
    skipped: int = 0
    done: int = 0
    running: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def line(self) -> str:
        seconds = time.monotonic() - self.started
        rate = self.done / seconds if seconds > 0 else 0.0
        left = self.total - self.skipped - self.done - len(self.failed)
        remaining = f", about {left / rate / 60:.0f} min left" if rate and left else ""
        return (
            f"{self.skipped + self.done} of {self.total} done ({self.skipped} earlier), {len(self.failed)} failed, "
            f"{self.running} running, {60 * rate:.1f} a minute{remaining}"
        )


class Engine(Protocol):
    """The small interface behind which the three engines stand."""

    slots: int

    def submit(self, unit: Unit) -> None: ...
    def finished(self) -> list[Outcome]: ...
    def close(self, *, cancel: bool) -> None: ...


def run_units(
    units: Sequence[Unit], out: Path, options: EngineOptions, report: Callable[[Progress], None] | None = None
) -> Progress:
    """Run every unit whose result does not exist yet; failures are collected, never raised, except refusals."""
    keys = [unit.key for unit in units]
    if len(set(keys)) != len(keys):
        raise InputError("two units have the same key; results would overwrite each other")
    report = report or print_progress()
    progress = Progress(len(units))
    waiting = deque(unit for unit in units if not Path(unit.result).exists())
    progress.skipped = len(units) - len(waiting)
    if not waiting:
        report(progress)
        return progress
    out.mkdir(parents=True, exist_ok=True)
    with _session(out, options) as session:
        engine = ENGINES[options.engine](session, options)
        tries: dict[str, int] = {}
        running: dict[str, Unit] = {}
        cancel = True
        try:
            while waiting or running:
                while waiting and len(running) < engine.slots:
                    unit = waiting.popleft()
                    engine.submit(unit)
                    running[unit.key] = unit
                progress.running = len(running)
                report(progress)
                for outcome in engine.finished():
                    unit = running.pop(outcome.key)
                    tries[unit.key] = tries.get(unit.key, 0) + 1
                    again = _after(unit, outcome, tries[unit.key], options.retries, progress)
                    if again:
                        waiting.append(again)
            progress.running = 0
            report(progress)
            cancel = False
        finally:
            engine.close(cancel=cancel)
    return progress


def _after(unit: Unit, outcome: Outcome, tries: int, retries: int, progress: Progress) -> Unit | None:
    """Book an outcome; the unit to try again, or None."""
    if outcome.status == "refused":
        raise DasmilError(outcome.reason)
    if outcome.status == "done":
        progress.done += 1
        return None
    if outcome.status == "out-of-memory" and unit.lean:
        return dataclasses.replace(unit, arguments=unit.arguments | unit.lean, lean={})
    if outcome.status == "crashed" and tries <= retries:
        return unit
    progress.failed[unit.key] = outcome.reason
    return None


@dataclass(frozen=True)
class Session:
    """What every worker checks before it works: the same folder and the same code as the coordinator's."""

    token: str
    logs: str
    code: str
    threads: int


@contextlib.contextmanager
def _session(out: Path, options: EngineOptions) -> Iterator[Session]:
    logs = out.resolve() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    token = logs / f".session-{uuid4().hex}"
    token.touch()
    try:
        yield Session(str(token), str(logs), code_digest(), options.threads)
    finally:
        token.unlink(missing_ok=True)


@functools.cache
def code_digest() -> str:
    """Digest of the installed package's sources: a version number alone does not tell two checkouts apart."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def execute(unit: Unit, session: Session) -> Outcome:
    """Run one unit in this process, its output going to a log of its own; never raises for what the unit does."""
    if not Path(session.token).exists():
        return Outcome(unit.key, "refused", f"the output folder is not shared: {_place()} cannot see {session.token}")
    if code_digest() != session.code:
        reason = f"{_place()} has other code of dasmil than the coordinator; install the same version everywhere"
        return Outcome(unit.key, "refused", reason)
    os.environ["OMP_NUM_THREADS"] = str(session.threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(session.threads)
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in unit.key)
    with (
        open(Path(session.logs) / f"{name}.log", "a", encoding="utf-8", buffering=1) as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        print(json.dumps({"unit": unit.key, "at": _place(), "time": time.strftime("%Y-%m-%d %H:%M:%S")}))
        try:
            module, _, function = unit.function.partition(":")
            getattr(importlib.import_module(module), function)(**unit.arguments)
        except Exception as error:
            traceback.print_exc()
            if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
                return Outcome(unit.key, "out-of-memory", "ran out of memory")
            known = isinstance(error, DasmilError)
            reason = str(error) if known else f"{type(error).__name__}: {error} (see {log.name})"
            return Outcome(unit.key, "failed" if known else "crashed", reason)
    if not Path(unit.result).exists():
        return Outcome(unit.key, "crashed", f"ended without its result {unit.result}")
    return Outcome(unit.key, "done")


def _place() -> str:
    return f"host {os.uname().nodename}, process {os.getpid()}"


class Local:
    """Processes on this machine; with GPUs, one process per GPU."""

    def __init__(self, session: Session, options: EngineOptions) -> None:
        self.session = session
        gpus = _visible_gpus() if options.gpus else []
        cores = max(1, len(os.sched_getaffinity(0)) // options.threads)
        self.slots = options.workers or (len(gpus) or cores)
        self.gpus = gpus
        self.running: dict[Future[Outcome], Unit] = {}
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        queue = context.SimpleQueue()
        for k in range(self.slots):
            queue.put(self.gpus[k % len(self.gpus)] if self.gpus else None)
        self.pool = ProcessPoolExecutor(self.slots, context, initializer=_take_gpu, initargs=(queue,))

    def submit(self, unit: Unit) -> None:
        self.running[self.pool.submit(execute, unit, self.session)] = unit

    def finished(self) -> list[Outcome]:
        ended, _ = wait(self.running, timeout=1.0, return_when=FIRST_COMPLETED)
        try:
            outcomes = [future.result() for future in ended]
        except BrokenProcessPool:  # one killed process breaks the pool, so every unit in work is lost
            reason = "a process was killed while this unit was running (out of memory?)"
            outcomes = [
                Outcome(unit.key, "crashed", reason) if future.exception() else future.result()
                for future, unit in self.running.items()
            ]
            self.running.clear()
            self._start()
        for future in ended:
            self.running.pop(future, None)
        return outcomes

    def close(self, *, cancel: bool) -> None:
        processes = list((self.pool._processes or {}).values())
        self.pool.shutdown(wait=not cancel, cancel_futures=True)
        if cancel:
            for process in processes:
                process.terminate()


def _visible_gpus() -> list[str]:
    import torch

    return [str(k) for k in range(torch.cuda.device_count())]


def _take_gpu(queue: Any) -> None:
    gpu = queue.get()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu


class Ray:
    """A running Ray cluster, or one started on this machine."""

    def __init__(self, session: Session, options: EngineOptions) -> None:
        try:
            import ray
            import ray.exceptions
        except ImportError:
            raise MissingDependencyError("ray", "cluster", "the engine ray") from None
        self.ray = ray
        self.own = not ray.is_initialized()
        if self.own:
            _check_reachable(options.ray_address)
            ray.init(address=options.ray_address, log_to_driver=False, logging_level=logging.ERROR)
        self.session = session
        self.task = ray.remote(num_cpus=options.threads, num_gpus=options.gpus, max_retries=0)(execute)
        self.slots = options.workers or 4 * max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.running: dict[Any, Unit] = {}

    def submit(self, unit: Unit) -> None:
        self.running[self.task.remote(unit, self.session)] = unit

    def finished(self) -> list[Outcome]:
        ended, _ = self.ray.wait(list(self.running), num_returns=1, timeout=1.0)
        outcomes = []
        for reference in ended:
            unit = self.running.pop(reference)
            try:
                outcomes.append(self.ray.get(reference))
            except self.ray.exceptions.RayError as error:
                reason = f"its worker or node was lost ({type(error).__name__})"
                outcomes.append(Outcome(unit.key, "crashed", reason))
        return outcomes

    def close(self, *, cancel: bool) -> None:
        if cancel:
            for reference in self.running:
                self.ray.cancel(reference, force=True)
        if self.own:
            self.ray.shutdown()


def _check_reachable(address: str | None) -> None:
    """Ask the port first: Ray itself tries for minutes and then ends the process."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # None, "auto" or "local"
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise InputError(f"no Ray cluster answers at {address} ({error}); check --ray-address") from error


class Slurm:
    """Job arrays through submitit; every round of waiting units becomes one array."""

    def __init__(self, session: Session, options: EngineOptions) -> None:
        try:
            import submitit
        except ImportError:
            raise MissingDependencyError("submitit", "cluster", "the engine slurm") from None
        if options.slurm_cluster == "slurm" and not shutil.which("srun"):
            raise InputError("there is no Slurm on this machine (srun is not on the PATH): start on a login node")
        folder = Path(session.logs) / "slurm"
        self.executor = submitit.AutoExecutor(folder=folder, cluster=options.slurm_cluster)
        self.executor.update_parameters(
            name="dasmil",
            timeout_min=options.slurm_minutes,
            mem_gb=options.slurm_memory_gb,
            cpus_per_task=options.threads,
            gpus_per_node=int(-(-options.gpus // 1)),
            slurm_array_parallelism=options.workers or 1000,
            **({"slurm_partition": options.slurm_partition} if options.slurm_partition else {}),
        )
        self.session = session
        self.slots = 1000  # Slurm's own default limit for an array
        self.queue: list[Unit] = []
        self.running: list[tuple[Any, Unit]] = []

    def submit(self, unit: Unit) -> None:
        self.queue.append(unit)

    def finished(self) -> list[Outcome]:
        if self.queue:
            jobs = self.executor.map_array(execute, self.queue, [self.session] * len(self.queue))
            self.running += list(zip(jobs, self.queue, strict=True))
            self.queue = []
        time.sleep(1.0)
        ended = [(job, unit) for job, unit in self.running if job.done()]
        self.running = [pair for pair in self.running if pair not in ended]
        return [self._outcome(job, unit) for job, unit in ended]

    def _outcome(self, job: Any, unit: Unit) -> Outcome:
        error = job.exception()
        if error is None:
            return job.result()
        if Path(unit.result).exists():  # the job was cut off after its work
            return Outcome(unit.key, "done")
        return Outcome(
            unit.key, "crashed", f"job {job.job_id} ended in state {job.state}: {str(error).splitlines()[0]}"
        )

    def close(self, *, cancel: bool) -> None:
        if cancel:
            for job, _ in self.running:
                job.cancel()


ENGINES: dict[str, Callable[[Session, EngineOptions], Engine]] = {"local": Local, "ray": Ray, "slurm": Slurm}


def print_progress() -> Callable[[Progress], None]:
    """A reporter: one line renewed on a terminal, a plain line now and then otherwise."""
    last = {"time": 0.0, "text": ""}
    terminal = sys.stderr.isatty()

    def report(progress: Progress) -> None:
        now, ended = time.monotonic(), not progress.running
        if not ended and now - last["time"] < (0.2 if terminal else 30.0):
            return
        last["time"] = now
        text = progress.line()
        if terminal:
            print(f"\r\x1b[2K{text}", end="\n" if ended else "", file=sys.stderr, flush=True)
        elif text != last["text"]:
            print(text, file=sys.stderr, flush=True)
        last["text"] = text

    return report

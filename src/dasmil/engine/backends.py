"""The three engines, each behind the same small interface: submit a unit, collect outcomes, close."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Protocol

from dasmil.engine.units import EngineOptions, Session, Unit, UnitOutcome, execute
from dasmil.errors import InputError, MissingDependencyError

ARRAY_LIMIT, ARRAY_SECONDS = 1000, 30.0  # Slurm's usual limit of an array; at most one more array in so many seconds
PATIENCE = 30.0  # seconds for jobs on this machine to end


class Engine(Protocol):
    """The small interface behind which the three engines stand; slots: units to hand out at once."""

    slots: int

    def submit(self, unit: Unit) -> None: ...
    def finished(self) -> list[UnitOutcome]: ...
    def running(self) -> int: ...
    def close(self, *, cancel: bool) -> None: ...


class Local:
    """Processes on this machine, one per slot, each with its GPU; one that is killed takes only its own unit along."""

    def __init__(self, session: Session, options: EngineOptions) -> None:
        self.session = session
        self.gpus = _visible_gpus() if options.gpus else []
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        room = int(len(self.gpus) / options.gpus) if options.gpus else max(1, cores // options.threads)
        self.slots = min(options.workers or room, room) if self.gpus else options.workers or room
        self.pools = [self._start(slot) for slot in range(self.slots)]
        self.free = list(range(self.slots))
        self.work: dict[Future[UnitOutcome], tuple[Unit, int]] = {}

    def _start(self, slot: int) -> ProcessPoolExecutor:
        gpu = self.gpus[slot % len(self.gpus)] if self.gpus else None
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_prepare, initargs=(gpu,))

    def submit(self, unit: Unit) -> None:
        slot = self.free.pop()
        with _ctrl_c_kept_from_children():  # a worker starts with its first unit
            try:
                future = self.pools[slot].submit(execute, unit, self.session)
            except BrokenProcessPool:  # killed while it had nothing to do
                self.pools[slot] = self._start(slot)
                future = self.pools[slot].submit(execute, unit, self.session)
            self.work[future] = unit, slot

    def finished(self) -> list[UnitOutcome]:
        ended, _ = wait(self.work, timeout=1.0, return_when=FIRST_COMPLETED)
        outcomes = []
        for future in ended:
            unit, slot = self.work.pop(future)
            try:
                outcomes.append(future.result())
            except BrokenProcessPool:
                outcomes.append(UnitOutcome(unit.key, "crashed", "its process was killed (out of memory?)"))
                self.pools[slot] = self._start(slot)
            self.free.append(slot)
        return outcomes

    def running(self) -> int:
        return len(self.work)

    def close(self, *, cancel: bool) -> None:
        for pool in self.pools:
            processes = list((pool._processes or {}).values())
            pool.shutdown(wait=not cancel, cancel_futures=True)
            for process in processes if cancel else ():
                process.terminate()


def _visible_gpus() -> list[str]:
    import torch

    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    found = given[: torch.cuda.device_count()] or [str(k) for k in range(torch.cuda.device_count())]
    if not found:
        raise InputError("GPUs were asked for, but PyTorch sees none on this machine: leave out --gpus")
    return found


def _prepare(gpu: str | None) -> None:
    """In a new worker: its GPU; Ctrl-C is left to the coordinator; when that is gone, so is the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_coordinator, daemon=True).start()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu


def _end_with_coordinator() -> None:
    coordinator = multiprocessing.parent_process()
    if coordinator is not None:
        coordinator.join()
        os._exit(1)


class Ray:
    """A running Ray cluster, or one started on this machine."""

    def __init__(self, session: Session, options: EngineOptions) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
            import ray.exceptions
        except ImportError:
            raise MissingDependencyError("ray", "cluster", "the engine ray") from None
        self.ray, self.session, self.threads = ray, session, options.threads
        self.own = not ray.is_initialized()
        if self.own:
            address = options.ray_address or os.environ.get("RAY_ADDRESS") or "local"
            _check_reachable(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise InputError(f"cannot join a Ray cluster at {address}: {reason}; check --ray-address") from error
        self.task = ray.remote(num_cpus=options.threads, num_gpus=options.gpus, max_retries=0)(execute)
        self.share = options.gpus
        self.slots = options.workers or 4 * self._room()
        self.work: dict[Any, Unit] = {}

    def _room(self) -> int:
        """How many units the cluster, as it is now, can run at once."""
        found = self.ray.cluster_resources()
        rooms = [found.get("CPU", 0) // self.threads] + ([found.get("GPU", 0) // self.share] if self.share else [])
        return max(1, int(min(rooms)))

    def submit(self, unit: Unit) -> None:
        self.work[self.task.remote(unit, self.session)] = unit

    def finished(self) -> list[UnitOutcome]:
        ended, _ = self.ray.wait(list(self.work), num_returns=1, timeout=1.0)
        if ended:  # and whatever else has ended by now
            ended, _ = self.ray.wait(list(self.work), num_returns=len(self.work), timeout=0)
        return [self._outcome(reference) for reference in ended]

    def _outcome(self, reference: Any) -> UnitOutcome:
        unit = self.work.pop(reference)
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.OutOfMemoryError:
            return UnitOutcome(unit.key, "out-of-memory", "Ray ended its worker because the node ran out of memory")
        except self.ray.exceptions.RayError as error:
            reason = (str(error).strip().splitlines() or ["no reason given"])[-1]
            return UnitOutcome(unit.key, "crashed", f"its worker or node was lost ({type(error).__name__}: {reason})")

    def running(self) -> int:
        return min(len(self.work), self._room())

    def close(self, *, cancel: bool) -> None:
        if cancel:
            for reference in self.work:
                self.ray.cancel(reference, force=True)
        if self.own:
            self.ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ask the port first: Ray itself tries for minutes and then ends the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # "auto" or "local"
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise InputError(f"no Ray cluster answers at {address} ({error}); check --ray-address") from error


class Slurm:
    """Job arrays through submitit; the units that wait become one array."""

    def __init__(self, session: Session, options: EngineOptions) -> None:
        try:
            import submitit
        except ImportError:
            raise MissingDependencyError("submitit", "cluster", "the engine slurm") from None
        if options.slurm_cluster == "slurm" and not shutil.which("srun"):
            raise InputError("there is no Slurm on this machine (srun is not on the PATH): start on a login node")
        self.executor = submitit.AutoExecutor(folder=Path(session.logs) / "slurm", cluster=options.slurm_cluster)
        self.executor.update_parameters(
            name="dasmil",
            timeout_min=options.slurm_minutes,
            mem_gb=options.slurm_memory_gb,
            cpus_per_task=options.threads,
            gpus_per_node=1 if options.gpus else 0,
            slurm_array_parallelism=options.workers or ARRAY_LIMIT,
            **({"slurm_partition": options.slurm_partition} if options.slurm_partition else {}),
        )
        self.session = session
        self.dry = options.slurm_cluster == "local"
        self.slots = options.workers or ((os.cpu_count() or 1) if self.dry else ARRAY_LIMIT)
        self.pause = 0.0 if self.dry else ARRAY_SECONDS
        self.queue: list[Unit] = []
        self.work: list[tuple[Any, Unit]] = []
        self.sent = 0.0

    def submit(self, unit: Unit) -> None:
        self.queue.append(unit)

    def finished(self) -> list[UnitOutcome]:
        if self.queue and (not self.work or time.monotonic() - self.sent > self.pause):
            function = _execute_here if self.dry else execute
            with _ctrl_c_kept_from_children():
                jobs = self.executor.map_array(function, self.queue, [self.session] * len(self.queue))
                self.work += list(zip(jobs, self.queue, strict=True))  # before a Ctrl-C that came meanwhile is heard
                self.queue, self.sent = [], time.monotonic()
        time.sleep(1.0)
        ended = [pair for pair in self.work if pair[0].done()]
        self.work = [pair for pair in self.work if pair not in ended]
        return [self._outcome(job, unit) for job, unit in ended]

    def _outcome(self, job: Any, unit: Unit) -> UnitOutcome:
        error = job.exception()
        if error is None:
            return job.result()
        if Path(unit.result).exists():  # the job was cut off after its work
            return UnitOutcome(unit.key, "done")
        if str(job.state).startswith("OUT_OF_ME"):
            return UnitOutcome(unit.key, "out-of-memory", f"job {job.job_id} ran out of memory: see --slurm-memory")
        text = str(error).strip().splitlines()[0]
        hint = "if every job ends so, the folder may not be shared, or dasmil not installed, on the nodes"
        return UnitOutcome(unit.key, "crashed", f"job {job.job_id} ended in state {job.state}: {text} ({hint})")

    def running(self) -> int:
        return sum(str(job.state) == "RUNNING" for job, _ in self.work)

    def close(self, *, cancel: bool) -> None:
        if not cancel:
            return
        for job, _ in self.work if not self.dry else ():
            with contextlib.suppress(OSError):
                job.cancel()
        alive = [job._process for job, _ in self.work] if self.dry else []  # submitit's own way prints tracebacks
        deadline = time.monotonic() + PATIENCE
        while (alive := [process for process in alive if process.poll() is None]) and time.monotonic() < deadline:
            for process in alive:
                process.terminate()  # again and again: a job that still starts ignores it
            time.sleep(0.2)


def _execute_here(unit: Unit, session: Session) -> UnitOutcome:
    """A job on this machine: SIGTERM ends it, which submitit makes its jobs ignore."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return execute(unit, session)


@contextlib.contextmanager
def _ctrl_c_kept_from_children() -> Iterator[None]:
    """Processes started here never see the terminal's Ctrl-C: the coordinator ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


ENGINES: dict[str, Callable[[Session, EngineOptions], Engine]] = {"local": Local, "ray": Ray, "slurm": Slurm}

"""The three engines, each behind the same small interface: submit a unit, collect outcomes, close."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import socket
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Protocol

from dasmil.engine.units import EngineOptions, Outcome, Session, Unit, execute
from dasmil.errors import InputError, MissingDependencyError


class Engine(Protocol):
    """The small interface behind which the three engines stand."""

    slots: int

    def submit(self, unit: Unit) -> None: ...
    def finished(self) -> list[Outcome]: ...
    def close(self, *, cancel: bool) -> None: ...


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

"""The options that say where work runs; shared by all verbs whose work can be spread over processes or machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

if TYPE_CHECKING:
    from dasmil.engine import EngineOptions

GROUP = Group("Where it runs", sort_key=6)


@Parameter(name="*", group=GROUP)
@dataclass(frozen=True, kw_only=True)
class EngineArguments:
    """Where units of work (a slide, trials, a fold, a cell of a table) run, and what each may use.

    Parameters
    ----------
    engine
        Where units of work run: local (processes on this machine), ray (a Ray cluster) or slurm (jobs of a cluster).
    jobs
        Number of units at once. Default: one on this machine (reproduce: one per core), no limit on a cluster. 0: one
        per core, or per GPU with --gpus.
    threads
        Number of cores of one unit. Default: one, or all cores if one unit runs at a time on this machine.
    gpus
        Number of GPUs of one unit; on one machine and on Ray also a fraction (0.25: four units share a GPU).
    retries
        Number of further tries of a unit whose process died or that failed unexpectedly.
    ray_address
        Ray cluster to join (auto, or HOST:PORT). Default: start one on this machine.
    slurm_partition
        Partition of the Slurm jobs.
    slurm_time
        Time limit of one Slurm job in minutes.
    slurm_memory
        Memory of one Slurm job in GB.
    slurm_local
        Run the Slurm jobs as processes on this machine, to test a command.
    """

    engine: Literal["local", "ray", "slurm"] = "local"
    jobs: int | None = None
    threads: int | None = None
    gpus: float = 0
    retries: int = 2
    ray_address: str | None = None
    slurm_partition: str | None = None
    slurm_time: int = 60
    slurm_memory: int = 16
    slurm_local: Annotated[bool, Parameter(negative="")] = False

    @property
    def in_this_process(self) -> bool:
        """One unit at a time on this machine: no workers are needed."""
        return self.engine == "local" and self.jobs in (None, 1) and not self.gpus

    def use_threads(self) -> None:
        """Compute with as many threads as were asked for, in this process; refused where nobody has so many."""
        checked = self.options()
        if self.threads is not None:
            import torch

            torch.set_num_threads(checked.threads)

    def options(self) -> EngineOptions:
        """As the engine takes them."""
        from dasmil.engine import EngineOptions
        from dasmil.errors import InputError

        given = {"--ray-address": ("ray", self.ray_address), "--slurm-partition": ("slurm", self.slurm_partition)}
        for flag, (engine, value) in {**given, "--slurm-local": ("slurm", self.slurm_local)}.items():
            if value and self.engine != engine:
                raise InputError(f"{flag} is for --engine {engine}, but the engine is {self.engine}: add or drop one")
        return EngineOptions(
            self.engine, self.jobs or 0, 1 if self.threads is None else self.threads, self.gpus, self.retries,
            self.ray_address, self.slurm_partition, self.slurm_time, self.slurm_memory,
            "local" if self.slurm_local else "slurm",
        )  # fmt: skip

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
        local: processes on this machine; ray: a Ray cluster; slurm: jobs of a Slurm cluster.
    jobs
        Units at once. Default: one on this machine (reproduce: one per core), on a cluster as many as it takes. 0: one
        per core, or per GPU with --gpus.
    threads
        Cores of one unit. Default: one; all cores when one unit runs at a time on this machine.
    gpus
        GPUs of one unit: 1, or on one machine and on Ray a fraction (0.25: four units share a GPU).
    retries
        How often a unit whose process died, or that failed for an unexpected reason, is tried again.
    ray_address
        The Ray cluster to join (auto, or HOST:PORT); without it one is started on this machine.
    slurm_partition
        Partition of the Slurm jobs.
    slurm_time
        Minutes that one Slurm job may take.
    slurm_memory
        GB of memory of one Slurm job.
    slurm_local
        Run the Slurm jobs as processes on this machine, to try a command out.
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

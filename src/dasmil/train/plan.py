"""What training will cost: small probes of the real engine in processes of their own, extended to a cohort's bags."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import nnls

from dasmil.data.memory import available_memory
from dasmil.errors import DasmilError, InputError
from dasmil.tasks import Task, task_from
from dasmil.train.competition import most_starts
from dasmil.train.job import Job

if TYPE_CHECKING:
    from dasmil.types import Bag

PROBE_BAGS = 2
SMALLEST_PROBE = 256
LARGEST_PROBE = 8192
WARM_UP = 512
SPACING = 100.0
MOST_THREADS = 1024
"""Of the instances of a probe, where nothing is known of the bags."""
CHEAP_SECONDS = 0.25  # a largest probe that takes less is followed by one nearer to the largest bag
PICTURES = 64  # pictures of a small probe: the CNN that reads them is most of its cost
PROBE_BYTES = 2**25  # of the largest probe of pictures
TELLING_BYTES = 2**20  # less memory of a step is noise
LARGEST_ANSWER = 10_000_000  # larger bags are not asked about
QUADRATIC_FROM = 1.6  # power of n with which the memory of the two largest probes grows: 1 = linear, 2 = quadratic


@dataclass(frozen=True)
class Measurement:
    """One probe: training on bags of n instances. step_bytes is what training needs on top of holding the bags.

    seconds_per_bag: processor time of a step, summed over threads; cores: how many of them were busy at once.
    """

    n: int
    seconds_per_bag: float
    cores: float
    base_bytes: int
    step_bytes: int


@dataclass(frozen=True)
class Plan:
    """Predicted cost of an epoch and the memory at its worst moment."""

    probes: list[Measurement]
    seconds_per_epoch: float
    peak_bytes: int
    largest_bag: int
    memory_limit: int
    held_bytes: int
    time_coefficients: list[float]
    memory_coefficients: list[float]
    epochs: int
    starts: int
    """Starts of a run that train at first, at most for ``starts_epochs``, on parts of large bags."""
    starts_epochs: int
    seconds_per_starts_epoch: float

    @property
    def seconds_in_all(self) -> tuple[float, float]:
        """From the first start that learns at once to the last epoch of choosing; without restarts."""
        if self.starts == 1:
            return self.seconds_per_epoch * self.epochs, self.seconds_per_epoch * self.epochs
        first, last = (
            choosing * self.seconds_per_starts_epoch + (self.epochs - choosing) * self.seconds_per_epoch
            for choosing in (1, self.starts_epochs)
        )
        return min(first, last), max(first, last)

    def seconds(self, n: float) -> float:
        """Predicted seconds of one step on a bag of n instances."""
        return float(_terms([n])[0] @ np.array(self.time_coefficients))

    def step_bytes(self, n: float) -> float:
        """Predicted bytes of one step on a bag of n instances, besides the bag itself."""
        return float(_terms([n])[0] @ np.array(self.memory_coefficients))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def make_plan(
    job: Job,
    sizes: Sequence[int],
    *,
    seeds: int = 1,
    memory_gb: float | None = None,
    threads: int | None = None,
    spacing: float = SPACING,
    on_probe: Callable[[int, int], None] | None = None,
) -> Plan:
    """Predict time and memory of training a job on bags of these sizes, on this machine.

    memory_gb: what may be used; default: what is free now. spacing: each instance has a square with sides of this
    length to itself, in the unit of the coordinates; with a radius, cost follows the neighbours.
    """
    if not 0 < spacing < math.inf:
        raise InputError(f"the spacing of instances is {spacing:g}, expected a length above 0")
    if seeds < 1 or (threads is not None and threads < 1):
        found = f"seeds is {seeds}" if seeds < 1 else f"threads is {threads}"
        raise InputError(f"{found}, expected at least 1")
    if threads is not None and threads > MOST_THREADS:
        raise InputError(f"threads is {threads}, expected at most {MOST_THREADS:,}")
    if memory_gb is not None and not 0 < memory_gb < math.inf:
        raise InputError(f"memory_gb is {memory_gb:g}, expected the memory that may be used, above 0")
    config, starts = job.config, most_starts(job)
    limit = int(memory_gb * 2**30) if memory_gb is not None else available_memory()
    probes = _probes(job, max(sizes), seeds, threads, spacing, on_probe)
    seconds, memory = _seconds(probes, 3 if job.options.get("radius") is None else 2), _memory(probes)
    parts = np.minimum(sizes, config.starts_instances)  # what competing starts see of the bags
    together = starts if seeds * starts * int(parts.max()) <= config.stacked_instances else 1
    base = int(np.median([p.base_bytes for p in probes]))
    bag = 4 * (math.prod(job.outline.feature_shape) + 2)
    kept_limit = config.memory_gb * 2**30
    total = bag * sum(sizes)
    # Small cohorts are kept in memory; of larger ones the bag in use, the next one, and the one being read.
    held = total if total <= kept_limit else 3 * bag * max(sizes)
    whole, part = (float(_terms([n])[0] @ memory) for n in (max(sizes), parts.max()))
    plan = Plan(
        probes=probes,
        seconds_per_epoch=float((_terms(sizes) @ seconds).sum()),
        peak_bytes=int(base + held + max(whole, together * part)),
        largest_bag=0,
        memory_limit=limit,
        held_bytes=held,
        time_coefficients=seconds.tolist(),
        memory_coefficients=memory.tolist(),
        epochs=config.epochs,
        starts=starts,
        starts_epochs=math.ceil(config.starts_share * config.epochs),
        seconds_per_starts_epoch=starts * float((_terms(parts.tolist()) @ seconds).sum()),
    )
    return Plan(**{**vars(plan), "largest_bag": _largest(plan, base, bag)})


def _probes(
    job: Job,
    largest: int,
    seeds: int,
    threads: int | None,
    spacing: float,
    on_probe: Callable[[int, int], None] | None,
) -> list[Measurement]:
    """Measurements of three sizes up to the largest bag, and of a fourth one where that is cheap."""
    most = largest_probe(job)
    top = min(max(largest, SMALLEST_PROBE * 4 if len(job.outline.feature_shape) == 1 else PICTURES), most)
    chosen = [top // 4, top // 2, top]
    probes: list[Measurement] = []

    def probe(n: int) -> None:
        if on_probe:
            on_probe(len(probes), max(len(chosen), len(probes) + 1))
        probes.append(measure(job, n, seeds=seeds, threads=threads, spacing=spacing))

    for n in chosen:
        probe(n)
    cheap = probes[-1].seconds_per_bag < CHEAP_SECONDS
    if largest > top and cheap and most == LARGEST_PROBE:
        probe(min(largest, 4 * top))
    elif top < most and cheap:
        probe(most)  # the memory of small bags drowns in that of the program
    return probes


def largest_probe(job: Job) -> int:
    """The most instances of a probe, unless more of them are cheap; of pictures as many as fill PROBE_BYTES."""
    shape = job.outline.feature_shape
    return LARGEST_PROBE if len(shape) == 1 else max(8, min(LARGEST_PROBE, PROBE_BYTES // (4 * math.prod(shape))))


def _seconds(probes: Sequence[Measurement], powers: int) -> np.ndarray:
    """Coefficients of the time of a step: processor time, because the clock on the wall also counts other programs."""
    cores = max(1.0, *(p.cores for p in probes))
    return _extend([p.n for p in probes], [p.seconds_per_bag / cores for p in probes], powers)


def _memory(probes: Sequence[Measurement]) -> np.ndarray:
    """Coefficients of the memory of a step.

    Memory that does not clearly grow with n^2 is extended as a line: one noisy probe would bend a curve far off.
    """
    growth = max(TELLING_BYTES, probes[-1].step_bytes) / max(TELLING_BYTES, probes[-2].step_bytes)
    powers = 3 if math.log(growth) > QUADRATIC_FROM * math.log(probes[-1].n / probes[-2].n) else 2
    telling = [p for p in probes if p.step_bytes >= TELLING_BYTES] or probes[-1:]
    return _extend([p.n for p in telling], [p.step_bytes for p in telling], powers)


def measure(job: Job, n: int, *, seeds: int = 1, threads: int | None = None, spacing: float = SPACING) -> Measurement:
    """Train two bags of n random instances for two epochs in a process of its own and report what it took."""
    request = {"job": job.as_json(), "n": n, "seeds": seeds, "threads": threads, "spacing": spacing}
    done = subprocess.run(
        [sys.executable, "-m", "dasmil.train.plan", json.dumps(request)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise InputError(f"{job.model} cannot train on bags of {n:,} instances here: {reason}")
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))


def peak_memory() -> int:
    """The most bytes this process has held so far."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _terms(sizes: Sequence[float]) -> np.ndarray:
    n = np.asarray(sizes, dtype=np.float64)
    return np.stack([np.ones_like(n), n, n * n], axis=1)


def _extend(sizes: Sequence[int], values: Sequence[float], powers: int = 3) -> np.ndarray:
    """Coefficients >= 0 of 1, n and n^2 (or the first few of them); every probe counts by its relative error."""
    if len(sizes) == 1:
        return np.array([0.0, values[0] / sizes[0], 0.0])
    weight = 1 / np.maximum(np.asarray(values, dtype=np.float64), max(max(values) * 1e-3, 1e-12))
    terms = _terms(sizes)[:, :powers] * weight[:, None]
    scale = np.linalg.norm(terms, axis=0)
    found, _ = nnls(terms / scale, np.asarray(values) * weight)
    return np.append(found / scale, np.zeros(3 - powers))


def _largest(plan: Plan, base: int, bag: int) -> int:
    """The largest bag whose step fits, with three bags held (in use, next, being read)."""
    low, high = 0, LARGEST_ANSWER
    while high - low > 100:
        middle = (low + high) // 2
        fits = base + 3 * bag * middle + plan.step_bytes(middle) <= plan.memory_limit
        low, high = (middle, high) if fits else (low, middle)
    return LARGEST_ANSWER if high == LARGEST_ANSWER else low // 100 * 100


PROBE_SETTINGS: dict[str, Any] = {
    "epochs": 2, "restarts": 0, "starts": 1, "warmup_epochs": 0.0, "tensorboard": False,
    "selection": "last", "early_stopping": 0,  # there are no validation bags to choose by
}  # fmt: skip


def _probe(request: dict[str, Any]) -> Measurement:
    """The work of the child process."""
    import torch

    from dasmil.train.fit import fit_job

    if request["threads"]:
        torch.set_num_threads(request["threads"])
    job = Job.from_json(request["job"]).with_settings(**PROBE_SETTINGS)

    def train(bags: list[Bag]) -> tuple[float, float]:
        """Processor time of the second epoch, and the share of cores it kept busy."""
        marks: list[tuple[float, float]] = []
        fit_job(
            job, bags, None, job.specs(request["seeds"]),
            on_epoch=lambda _: marks.append((time.process_time(), time.perf_counter())),
        )  # fmt: skip
        used, passed = (second - first for first, second in zip(*marks))
        return used, used / passed

    warm_up = min(WARM_UP, largest_probe(job))
    train(_random_bags(job, warm_up, request["spacing"]))  # import and start everything that training needs
    base = peak_memory()
    bags = _random_bags(job, request["n"], request["spacing"])
    held = peak_memory()
    tries = [train(bags) for _ in range(2)]
    seconds = min(used for used, _ in tries) / len(bags)
    return Measurement(request["n"], seconds, max(cores for _, cores in tries), base, max(0, peak_memory() - held))


def _random_bags(job: Job, n: int, spacing: float) -> list[Bag]:
    """Bags of n instances of the kind that the job is for."""
    import torch

    from dasmil.types import Bag

    generator, task = torch.Generator().manual_seed(n), task_from(job.outline.task)
    classes = max(2, *(len(target.classes) for target in task.targets))
    return [
        Bag(
            torch.randn(n, *job.outline.feature_shape, generator=generator),
            torch.rand(n, 2, generator=generator) * spacing * n**0.5,
            job.outline.unit,
            f"probe-{i}",
            label=i % 2,
            targets=_random_targets(task, i) if task.labels is None else {},
        )
        for i in range(max(PROBE_BAGS, classes))
    ]


def _random_targets(task: Task, number: int) -> dict[str, float | None]:
    """Values that a bag may have: every class, an event at a time of its own, a number."""
    return {name: value for target in task.targets for name, value in target.example(number).items()}


if __name__ == "__main__":
    try:
        print(json.dumps(asdict(_probe(json.loads(sys.argv[1])))))
    except DasmilError as error:
        sys.exit(str(error))

"""`dasmil bench engine`: what an engine costs for every unit, and what a second worker gains."""

from __future__ import annotations

import hashlib
import json as json_module
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from benchmarks.figures import Figures
from benchmarks.measure import in_fresh_process
from dasmil.files import write_text

if TYPE_CHECKING:
    from dasmil.engine import EngineOptions, Unit

ENGINES = ("local", "ray")
FREE = 1.9  # two plain processes reach this where two cores are free
MIB = bytes(2**20)


def main(
    *,
    units: int = 200,
    seconds: float = 0.25,
    rounds: int = 3,
    ray: bool = True,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Overhead per unit against a bare loop, after the start of workers, and the speed of two workers against one.

    Units of the first part do next to nothing and write one small file; units of the second part compute for a while.
    The local engine has one worker for the overhead, Ray one per core. Two plain processes without any engine are
    measured too: more than they reach, no engine can. Where other programs hold the cores, the share of time that two
    workers spend in units still tells what the engine costs, and is judged instead. Best of the rounds.

    Example: dasmil bench engine

    Parameters
    ----------
    units
        Units per measurement of the overhead.
    seconds
        Computing time of one unit in the measurement of two workers.
    rounds
        Measurements; the best counts.
    ray
        Also measure Ray (needs the extra cluster).
    json
        Print the figures as JSON.
    """
    title = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the measurement"
    figures = Figures("engine", title)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        bare = min(_bare(root / f"bare-{k}", units) for k in range(rounds))
        figures.add("bare loop", 1e3 * bare / units, "ms a unit")
        for name in ENGINES:
            if ray or name != "ray":
                over = _overhead(name, root, units, rounds, bare)
                figures.add(f"{name}, beyond the bare loop", over, "ms a unit", goal=f"{name}_ms")
        two = _two_workers(root, _repeats(seconds), rounds)
    figures.add("two plain processes, relative to one", two["plain"], "x")
    figures.add("two workers, relative to one", two["local"], "x")
    figures.add("share of time that two workers spend in units", two["at_work"])
    figures.add("two workers, relative to one, on free cores", _speedup(two), "x", goal="speedup")
    return figures.show(json=json)


def _speedup(two: dict[str, float]) -> float:
    """Of two workers: measured, or on a machine that is not free what the share of time in units would give."""
    return two["local"] if two["plain"] >= FREE else 2 * two["at_work"]


def work(result: str, repeats: int) -> None:
    """The unit of these measurements: hash some megabytes, then write when it began and ended."""
    begun = time.monotonic()
    _spin(repeats)
    write_text(Path(result), f"{begun} {time.monotonic()}")


def _units(folder: Path, count: int, repeats: int) -> list[Unit]:
    from dasmil.engine import Unit

    folder.mkdir(parents=True)
    results = [str(folder / f"{k}.txt") for k in range(count)]
    return [
        Unit(f"u{k}", "benchmarks.engine:work", {"result": result, "repeats": repeats}, result)
        for k, result in enumerate(results)
    ]


def _bare(folder: Path, count: int) -> float:
    folder.mkdir()
    begun = time.perf_counter()
    for k in range(count):
        work(str(folder / f"{k}.txt"), 0)
    return time.perf_counter() - begun


def _timed(units: list[Unit], out: Path, options: EngineOptions, first: int) -> float:
    """Seconds from the end of the units that start the workers to the end of the last unit."""
    from dasmil.engine import Progress, run_units
    from dasmil.errors import DasmilError

    marks: list[float] = []

    def watch(progress: Progress) -> None:
        if progress.done >= first and not marks:
            marks.append(time.monotonic())

    failed = run_units(units, out, options, watch).failed
    if failed:
        raise DasmilError(f"units of the measurement failed: {next(iter(failed.values()))}")
    return max(_times(unit)[1] for unit in units) - marks[0]


def _times(unit: Unit) -> tuple[float, float]:
    begun, ended = map(float, Path(unit.result).read_text().split())
    return begun, ended


def _at_work(units: list[Unit], workers: int) -> float:
    """Share of the time that the workers spent in units; other programs slow units down, but do not lower it much."""
    times = sorted(map(_times, units))[workers:]  # without the first of each, which begin at different times
    return sum(ended - begun for begun, ended in times) / workers / (max(e for _, e in times) - times[0][0])


def _overhead(engine: str, root: Path, count: int, rounds: int, bare: float) -> float:
    """Milliseconds per unit beyond the bare loop, on one worker."""
    from dasmil.engine import EngineOptions

    options = EngineOptions(engine=engine, workers=1 if engine == "local" else 0)  # pyright: ignore[reportArgumentType]
    first = 20
    best = min(
        _timed(_units(root / f"{engine}-{k}", count + first, 0), root / f"{engine}-{k}", options, first)
        for k in range(rounds)
    )
    return 1e3 * (best - bare) / count


def _repeats(seconds: float) -> int:
    """Megabytes that take about so long."""
    begun = time.process_time()
    for _ in range(50):
        hashlib.sha256(MIB)
    return max(1, round(50 * seconds / (time.process_time() - begun)))


def _two_workers(root: Path, repeats: int, rounds: int) -> dict[str, float]:
    """How many times as fast two are as one: plain processes, and workers of the local engine; in turn."""
    from dasmil.engine import EngineOptions

    best: dict[str, float] = {}
    count, share = 24, 0.0
    for k in range(rounds):
        for workers in (1, 2):
            folder = root / f"speed-{workers}-{k}"
            units = _units(folder, count + 2 * workers, repeats)
            found = _timed(units, folder, EngineOptions(workers=workers), 2 * workers)
            best[f"local {workers}"] = min(best.get(f"local {workers}", 1e9), found)
            share = max(share, _at_work(units, workers)) if workers == 2 else share
            plain = _plain(workers, count // workers, repeats)
            best[f"plain {workers}"] = min(best.get(f"plain {workers}", 1e9), plain)
    return {name: best[f"{name} 1"] / best[f"{name} 2"] for name in ("plain", "local")} | {"at_work": share}


def _plain(processes: int, count: int, repeats: int) -> float:
    """Seconds of the slowest of plain processes that do the same work."""
    with ThreadPoolExecutor(processes) as pool:
        found = pool.map(lambda _: in_fresh_process("benchmarks.engine", count * repeats), range(processes))
        return max(one["seconds"] for one in found)


def _spin(repeats: int) -> float:
    begun = time.perf_counter()
    digest = hashlib.sha256()
    for _ in range(repeats):
        digest.update(MIB)
    return time.perf_counter() - begun


if __name__ == "__main__":
    print(json_module.dumps({"seconds": _spin(int(sys.argv[1]))}))

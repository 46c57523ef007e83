"""Measuring tools: best of several rounds in turn, memory beyond what was there before, parts in fresh processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dasmil.errors import DasmilError

MIB = 1024 * 1024


def best_of(variants: Mapping[str, Callable[[], object]], rounds: int, *, wall: bool = False) -> dict[str, float]:
    """Seconds of each variant: the best of several rounds in which all take turns, after one round that does not count.

    CPU time of this process, which other programs hardly disturb; `wall` for what several threads do together.
    """
    clock = time.perf_counter if wall else time.process_time
    best = dict.fromkeys(variants, float("inf"))
    for number in range(rounds + 1):
        for name, run in variants.items():
            start = clock()
            run()
            if number > 0:
                best[name] = min(best[name], clock() - start)
    return best


def peak_extra_mib(run: Callable[[], object]) -> float:
    """MiB by which the memory of this process rises above its present size while `run` runs.

    Call it in a fresh process (`in_fresh_process`), or memory that was used and freed before is not seen.
    """
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux: only the highest size so far is known
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        run()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before) / MIB
    with contextlib.suppress(OSError):  # where it is forbidden, the highest size counts from the start of the process
        Path("/proc/self/clear_refs").write_text("5")  # the highest size starts anew from the present one
    before = _status_kib(status, "VmRSS")
    run()
    return (_status_kib(status, "VmHWM") - before) / 1024


def _status_kib(status: Path, field: str) -> int:
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(field + ":"))


def in_fresh_process(module: str, *arguments: object, threads: int | None = 1) -> dict[str, Any]:
    """Run `python -m module arguments` and return the JSON object that it prints last; threads: None for no limit."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    limits = {} if threads is None else dict.fromkeys(names, str(threads))
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | limits)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message (killed: out of memory?)"])[-1]
        raise DasmilError(f"the measurement {' '.join(map(str, arguments))} failed: {last}")
    return json.loads(done.stdout.splitlines()[-1])

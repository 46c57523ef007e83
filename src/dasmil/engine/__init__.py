"""Runs units of work on this machine, on a Ray cluster or on Slurm; a unit turns arguments into one result file.

State lives in the output folder alone: a unit whose result file exists is done, whichever engine made it. A coordinator
that dies is started again, perhaps on another engine.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from dasmil.engine.backends import ENGINES
from dasmil.engine.progress import Progress
from dasmil.engine.units import EngineOptions, Session, Unit, UnitOutcome, open_session
from dasmil.errors import DasmilError, InputError

__all__ = ["EngineOptions", "Progress", "Session", "Unit", "UnitOutcome", "run_units"]


def run_units(
    units: Sequence[Unit], out: Path, options: EngineOptions, report: Callable[[Progress], None] | None = None
) -> Progress:
    """Run every unit whose result does not exist yet; failures are collected, never raised, except refusals.

    report: is told how far it is, some times a second.
    """
    keys = [unit.key for unit in units]
    if len(set(keys)) != len(keys):
        raise InputError("two units have the same key; results would overwrite each other")
    report = report or (lambda _: None)
    progress = Progress(len(units))
    waiting = deque(unit for unit in units if not Path(unit.result).exists())
    progress.skipped = len(units) - len(waiting)
    if not waiting:
        progress.ended = True
        report(progress)
        return progress
    out.mkdir(parents=True, exist_ok=True)
    with open_session(out, options) as session:
        engine = ENGINES[options.engine](session, options)
        tries: dict[str, int] = {}
        running: dict[str, Unit] = {}
        try:
            while waiting or running:
                while waiting and len(running) < engine.slots:
                    unit = waiting.popleft()
                    engine.submit(unit)
                    running[unit.key] = unit
                progress.running = engine.running()
                report(progress)
                for outcome in engine.finished():
                    unit = running.pop(outcome.key)
                    tries[unit.key] = tries.get(unit.key, 0) + 1
                    again = _after(unit, outcome, tries[unit.key], options.retries, progress)
                    if again:
                        waiting.append(again)
            progress.ended, progress.running = True, 0
        finally:
            engine.close(cancel=not progress.ended)
        report(progress)
    return progress


def _after(unit: Unit, outcome: UnitOutcome, tries: int, retries: int, progress: Progress) -> Unit | None:
    """Book an outcome; the unit to try again, or None."""
    if outcome.status == "refused":
        raise DasmilError(outcome.reason)
    if outcome.status == "done":
        progress.count_done()
        return None
    if outcome.status == "out-of-memory" and unit.lean:
        return dataclasses.replace(unit, arguments=unit.arguments | unit.lean, lean={})
    if outcome.status == "crashed" and tries <= retries:
        return unit
    progress.failed[unit.key] = outcome.reason
    return None

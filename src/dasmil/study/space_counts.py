"""Counting the sections of a study of space: in this process, on an engine, and only what is not counted yet."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dasmil.engine.progress import duration
from dasmil.errors import DataError, InputError
from dasmil.files import json_hash, read_json, write_json
from dasmil.space.sections import Section
from dasmil.space.units import Part, count_part, count_stored, read_part, write_section
from dasmil.study.notes import Note

if TYPE_CHECKING:
    from dasmil.engine import EngineOptions, Unit

SETTINGS = "settings.json"


def counted_in_memory(
    sections: Sequence[Section], lengths: np.ndarray, types: int, draws: int, seed: int, note: Note, line: Note
) -> Iterator[Part]:
    """The parts of all sections, in order."""
    clock = _Clock(len(sections), note, line)
    for number, section in enumerate(sections):
        yield count_part(section, lengths, types, draws, _seed(seed, number))
        clock.tick()


def counted_in_folder(
    sections: Sequence[Section],
    lengths: np.ndarray,
    types: int,
    draws: int,
    seed: int,
    folder: Path,
    engine: EngineOptions | None,
    note: Note,
    line: Note,
) -> Iterator[Part]:
    """The same by files in a folder: what is there is not counted again."""
    units = _units(sections, lengths, types, draws, seed, folder / "sections")
    waiting = [unit for unit in units if not Path(unit.result).exists()]
    if len(waiting) < len(units):
        note(f"{len(units) - len(waiting)} of {len(units)} sections are counted already")
    if engine is not None and waiting:
        from dasmil.engine import run_units

        failed = run_units(units, folder, engine, lambda progress: line(progress.line())).failed
        if failed:
            reasons = "; ".join(f"{key}: {reason}" for key, reason in list(failed.items())[:2])
            raise DataError(f"{len(failed)} sections failed, for example {reasons}. Repeat the command to go on")
    else:
        clock = _Clock(len(waiting), note, line)
        for unit in waiting:
            count_stored(**unit.arguments)
            clock.tick()
    return (read_part(Path(unit.result)) for unit in units)


def _seed(seed: int, number: int) -> int:
    return seed + 1000 * number


class _Clock:
    """Says after the first section what all of them cost, then how far it is."""

    def __init__(self, total: int, note: Note, line: Note) -> None:
        self.total, self.done, self.note, self.line, self.start = total, 0, note, line, time.monotonic()

    def tick(self) -> None:
        """One more."""
        self.done += 1
        each = (time.monotonic() - self.start) / self.done
        if self.done == 1 and self.total > 1:
            self.note(f"Counting contacts takes about {duration(each * self.total)}")
        self.line(f"sections {self.done}/{self.total}, {duration(each * (self.total - self.done))} left")


def _units(
    sections: Sequence[Section], lengths: np.ndarray, types: int, draws: int, seed: int, work: Path
) -> list[Unit]:
    """One unit for each section. The folder belongs to one set of sections and settings."""
    from dasmil.engine import Unit

    content = [
        [s.name, s.patient, len(s), float(s.coords.sum()), int((s.kinds * np.arange(1, len(s) + 1)).sum())]
        for s in sections
    ]
    mark: dict[str, Any] = {"study": json_hash([lengths.tolist(), types, draws, seed, content])}
    stored = work / SETTINGS
    if stored.exists() and read_json(stored) != mark:
        raise InputError(
            f"{work.parent} holds another study (other sections, types, lengths, permutations or seed): choose another "
            "--out, or remove it"
        )
    write_json(stored, mark)
    units = []
    for number, section in enumerate(sections):
        place, result = work / f"{number:05d}.npz", work / f"{number:05d}-counts.npz"
        if not place.exists():
            write_section(place, section)
        arguments = {
            "section": str(place), "lengths": lengths.tolist(), "types": types, "draws": draws,
            "seed": _seed(seed, number), "result": str(result),
        }  # fmt: skip
        units.append(Unit(f"section-{number:05d}", "dasmil.space.units:count_stored", arguments, str(result)))
    return units

"""`dasmil space`: from a cohort to what positions add, which pairs of types, at which length, and how sure that is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dasmil.errors import DataError, InputError, named
from dasmil.files import write_csv, write_json
from dasmil.report.space import write_space_page
from dasmil.space import SpaceStudy, find_pairs, how_much, length_grid
from dasmil.space.classical import tested_l
from dasmil.space.outcome import Outcome
from dasmil.space.power import SIZES, PlantedPower, planted_power
from dasmil.space.sections import patients_of
from dasmil.space.units import as_patients, count_part, mean_of_patients
from dasmil.study.notes import Note, silent
from dasmil.study.space_cohort import MOST_TYPES, SpaceCohort, read_cohort
from dasmil.study.space_counts import counted_in_folder, counted_in_memory
from dasmil.study.space_export import write_instances
from dasmil.study.spec import CohortSpec
from dasmil.tasks import Task
from dasmil.types import Bag

if TYPE_CHECKING:
    from dasmil.engine import EngineOptions

PERMUTATIONS = 199
TOLD = 0.15
"""Share of the outcome that composition must leave, or a note says that little can be found."""
DESCRIBED = 99
"""Permutations of each section's types where no outcome is tested."""


def space_study(
    data: CohortSpec | Sequence[Bag],
    *,
    out: str | Path | None = None,
    types: int | None = None,
    lengths: Sequence[float] | None = None,
    permutations: int = PERMUTATIONS,
    task: Task | str | None = None,
    power: bool = True,
    write_back: bool = True,
    seed: int = 0,
    engine: EngineOptions | None = None,
    note: Note = silent,
    line: Note = silent,
) -> SpaceStudy:
    """How much positions add to composition, which pairs of types at which length, and what the cohort could show.

    Example: ``print(dasmil.space_study(dasmil.CohortSpec(bags="cells.csv", labels="labels.csv", bag_column="image",
    one_hot="cell_type", unit="um"), out="space"))``

    data: a cohort as training takes it, or bags in memory. types: how many types to find by k-means (default: the
    cohort's own categories, else 8). lengths: default 12, from the spacing of instances to a quarter of the extent.
    out: folder of the page, tables and figures; an interrupted study goes on from there. power: also plant differences
    of known size. write_back: also write what every instance has near it (CSV, AnnData). engine: where sections are
    counted; needs ``out``. line: is told how far it is.
    """
    _check(types, lengths, permutations)
    if engine is not None and out is None:
        raise InputError("an engine needs a folder for its results: give out as well")
    cohort = read_cohort(data, task, types, seed, note)
    grid = _lengths(cohort, lengths)
    outcome, sections, names = cohort.outcome, cohort.sections, cohort.types
    patient_names = patients_of(sections)
    note(
        f"{len(sections)} sections of {len(patient_names)} patients, {len(names)} types, {len(grid)} lengths from "
        f"{grid[0]:.3g} to {grid[-1]:.3g} {cohort.unit}"
    )
    draws = permutations if outcome is not None else min(permutations, DESCRIBED)
    given = sections, grid, len(names), draws, seed
    folder, notes = None if out is None else Path(out), list(cohort.notes)
    if folder is None:
        parts = counted_in_memory(*given, note, line)
    else:
        parts = counted_in_folder(*given, folder, engine, note, line)
    patients, per_section = as_patients(sections, parts, len(names))
    found: dict[str, Any] = {"adds": None, "pairs": [], "classical": [], "power": []}
    if outcome is not None:
        if not patients.kept.any():
            raise DataError(
                "no pair of types has enough contacts in most patients: use fewer --types, join rare categories, or "
                "give longer --lengths"
            )
        left = patients.left_of(outcome.targets())
        if left < TOLD:
            notes.append(
                f"composition and the size of sections tell most of the outcome ({100 * left:.0f} % is left): "
                "the tests can hardly find anything; compare sections of similar size"
            )
            note(notes[-1])
        line("pairs of types")
        found["pairs"] = find_pairs(patients, outcome, grid, seed=seed)
        found["classical"] = tested_l(mean_of_patients(sections, per_section["l"]), grid, outcome)
        found["adds"] = how_much(
            patients, outcome, draws=permutations, seed=seed, progress=lambda done, total: line(f"fits {done}/{total}")
        )
        if power:
            line("planting differences")
            found["power"] = planted_power(patients, outcome, grid, sizes=SIZES, seed=seed)
    study = SpaceStudy(
        names, grid, cohort.unit, sections, patients, patient_names, outcome, per_section=per_section,
        notes=notes, settings={"permutations": draws, "seed": seed}, folder=folder, **found,
    )  # fmt: skip
    if folder is not None:
        write_json(folder / "space.json", study.as_json())
        if study.pairs:
            write_csv(folder / "pairs.csv", study.pair_rows())
        write_csv(folder / "sections.csv", study.section_rows())
        if write_back:
            write_instances(study, cohort, folder, note)
        write_space_page(study, folder)
    return study


@dataclass(frozen=True)
class SpacePlan:
    """Seconds that counting the sections takes, and the differences in contacts that the cohort could show."""

    seconds: float
    sections: int
    patients: int
    types: tuple[str, ...]
    unit: str
    power: list[PlantedPower]


def space_plan(
    data: CohortSpec, *, permutations: int = PERMUTATIONS, seed: int = 0, note: Note = silent, line: Note = silent
) -> SpacePlan:
    """What a study costs and could show; one round of counting is done.

    The outcome is only asked how many patients have which; without one, half of them are taken for each class.
    """
    cohort = read_cohort(data, None, None, seed, note)
    grid = _lengths(cohort, None)
    middle = sorted(cohort.sections, key=len)[len(cohort.sections) // 2]
    spent = []
    for draws in (1, 6):
        start = time.monotonic()
        count_part(middle, grid, len(cohort.types), draws, seed)
        spent.append(time.monotonic() - start)
    seconds = (spent[0] + max(0.0, spent[1] - spent[0]) / 5 * permutations) * len(cohort.sections)
    parts = counted_in_memory(cohort.sections, grid, len(cohort.types), 0, seed, silent, line)
    patients, _ = as_patients(cohort.sections, parts, len(cohort.types))
    outcome = cohort.outcome or Outcome(
        "classes", (np.arange(len(patients)) % 2).astype(np.float64)[:, None], ("0", "1")
    )
    power = planted_power(patients, outcome, grid, seed=seed)
    return SpacePlan(seconds, len(cohort.sections), len(patients), cohort.types, cohort.unit, power)


def _check(types: int | None, lengths: Sequence[float] | None, permutations: int) -> None:
    if types is not None and not 2 <= types <= MOST_TYPES:
        raise InputError(f"types is {types}, expected 2 to {MOST_TYPES}")
    if not 19 <= permutations <= 9999:
        raise InputError(f"permutations is {permutations}, expected 19 to 9999: with 19 the smallest p is 0.05")
    if lengths is not None:
        values = np.array(lengths, dtype=np.float64)
        if not len(values) or not np.isfinite(values).all() or values.min() <= 0 or len(set(lengths)) < len(values):
            raise InputError(f"lengths are {named(lengths)}, expected different numbers above 0")


def _lengths(cohort: SpaceCohort, given: Sequence[float] | None) -> np.ndarray:
    return length_grid(cohort.sections) if given is None else np.sort(np.array(given, dtype=np.float64))

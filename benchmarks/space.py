"""`dasmil bench space`: the study of space on a cohort of cells, beside one fit of its predictions."""

from __future__ import annotations

import json as json_module
import sys
import time
from typing import Annotated

from cyclopts import Parameter

from benchmarks.figures import Figures
from benchmarks.measure import in_fresh_process

SECTIONS, CELLS, TYPES, PERMUTATIONS = 100, 2000, 12, 199


def main(
    *, quick: Annotated[bool, Parameter(negative="")] = False, json: Annotated[bool, Parameter(negative="")] = False
) -> int:
    """Count contacts in all sections, test pairs, and fit what positions add again for every permutation; one thread.

    Example: dasmil bench space --quick

    Parameters
    ----------
    quick
        20 sections of 500 cells.
    json
        Print the figures as JSON.
    """
    sections, cells = (20, 500) if quick else (SECTIONS, CELLS)
    found = in_fresh_process("benchmarks.space", sections, cells)
    whole = found["counting"] + found["pairs"] + found["adds"]
    title = f"{sections} sections of {cells:,} cells, {TYPES} types, {PERMUTATIONS} permutations, one thread"
    figures = Figures("space", title, details=found)
    figures.add("contacts of all sections, with permuted types", found["counting"], "CPU s")
    figures.add("pairs and lengths, with intervals", found["pairs"], "CPU s")
    figures.add("what positions add, fitted again for every permutation", found["adds"], "CPU s")
    figures.add("all in all", whole, "CPU s", goal="seconds")
    figures.add("permutations and their fits, relative to one fit", found["adds"] / found["one_fit"], "x")
    return figures.show(json=json)


def measure(sections: int, cells: int) -> dict[str, float]:
    """CPU seconds of the steps of a study."""
    import numpy as np

    from dasmil.space import Outcome, find_pairs, how_much, length_grid
    from dasmil.space.made import made_section
    from dasmil.space.units import as_patients, count_part

    rng = np.random.default_rng(0)
    side = float(np.sqrt(400.0 * cells))  # a cell in 20 x 20 um
    made = [
        made_section(str(k), str(k), rng.dirichlet(np.full(TYPES, 4.0)), cells, rng, side=side, patches=6)
        for k in range(sections)
    ]
    lengths = length_grid(made)
    outcome = Outcome("classes", (np.arange(sections) % 2).astype(np.float64)[:, None], ("no", "yes"))
    begun = time.process_time()
    parts = (count_part(one, lengths, TYPES, PERMUTATIONS, 100 * k) for k, one in enumerate(made))
    patients = as_patients(made, parts, TYPES)[0]
    counted = time.process_time()
    find_pairs(patients, outcome, lengths)
    tested = time.process_time()
    how_much(patients, outcome, draws=PERMUTATIONS)
    fitted = time.process_time()
    how_much(patients, outcome, draws=1)
    once = (time.process_time() - fitted) / 3  # as it is, one permuted outcome, one permutation of types
    return {"counting": counted - begun, "pairs": tested - counted, "adds": fitted - tested, "one_fit": once}


if __name__ == "__main__":
    print(json_module.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))

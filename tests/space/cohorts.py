"""Small made cohorts of sections, as arrays, for the tests of the study of space."""

from __future__ import annotations

import numpy as np

from dasmil.space import Outcome, Patients, Section
from dasmil.space.made import made_section, plant
from dasmil.space.units import as_patients, count_part

LENGTHS = np.array([15.0, 30.0, 60.0, 120.0])


def made_cohort(
    seed: int,
    patients: int = 24,
    *,
    composition_effect: float = 0.0,
    patches: int = 0,
    sections: int = 1,
    uneven: bool = False,
    planted: tuple[int, int, float, float] | None = None,
    cells: int = 120,
) -> tuple[list[Section], Outcome]:
    """Patients of two classes; uneven: sections of the second class are smaller, usually by a fifth."""
    rng = np.random.default_rng(seed)
    found, classes = [], []
    for number in range(patients):
        shares = rng.dirichlet(np.full(3, 4.0))
        chance = 1 / (1 + np.exp(-composition_effect * (shares[0] - shares[1])))
        label = int(rng.random() < chance) if composition_effect else number % 2
        classes.append(float(label))
        for part in range(int(rng.integers(1, sections + 1))):
            n = int(cells * (0.9 if label else 1.1) * rng.uniform(0.7, 1.3)) if uneven else cells
            section = made_section(
                f"{number}.{part}", str(number), shares, n, rng, side=np.sqrt(2000.0 * n), patches=patches
            )
            if planted and label:
                section = Section(section.name, section.patient, section.coords, plant(section, *planted, rng))
            found.append(section)
    return found, Outcome("classes", np.array(classes)[:, None], ("no", "yes"))


def counted(sections: list[Section], draws: int = 0, lengths: np.ndarray = LENGTHS) -> Patients:
    """The patients of sections of three types."""
    parts = (count_part(section, lengths, 3, draws, 100 * k) for k, section in enumerate(sections))
    return as_patients(sections, parts, 3)[0]

"""What the study of space looks at: sections whose instances have a position and a type, each of one patient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Kinds = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Section:
    """coords [n, d] in one unit, kinds [n] the number of each instance's type; sections have no distance to others."""

    name: str
    patient: str
    coords: Array
    kinds: Kinds

    def __len__(self) -> int:
        return len(self.kinds)


def type_pairs(count: int) -> list[tuple[int, int]]:
    """All unordered pairs of types, also of a type with itself."""
    return [(a, b) for a in range(count) for b in range(a, count)]


def patients_of(sections: Sequence[Section]) -> list[str]:
    """The patients in the order in which they come."""
    return list(dict.fromkeys(section.patient for section in sections))


def type_counts(sections: Sequence[Section], types: int) -> Array:
    """How many instances of each type every section has [sections, types]."""
    return np.array([np.bincount(section.kinds, minlength=types) for section in sections], dtype=np.float64)


def over_patients(values: Array, sections: Sequence[Section]) -> Array:
    """Sums over the sections of each patient: [..., sections, rest] along axis 0 becomes [patients, ...]."""
    names = {patient: number for number, patient in enumerate(patients_of(sections))}
    owner = np.array([names[section.patient] for section in sections])
    found = np.zeros((len(names), *values.shape[1:]))
    np.add.at(found, owner, values)
    return found

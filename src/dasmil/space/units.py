"""Counting sections as units of work: what a worker reads and leaves, and how the parts become patients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dasmil.files import replacing
from dasmil.space.classical import cross_g, cross_l, enrichment, envelope, moran
from dasmil.space.contacts import count_section, find_shells
from dasmil.space.patients import Patients
from dasmil.space.sections import Array, Section, over_patients, patients_of, type_counts

Part = dict[str, NDArray[np.floating]]


def count_part(section: Section, lengths: Array, types: int, draws: int, seed: int) -> Part:
    """All that one section contributes: contacts with their permutations, and its classical statistics."""
    shells = find_shells(section.coords, lengths, seed)
    counted = count_section(section, shells, types, draws, seed)
    contacts = counted.contacts.astype(np.float64)
    none = np.full(contacts.shape[1:], np.nan)
    counts = np.bincount(section.kinds, minlength=types).astype(np.float64)
    return {
        "contacts": counted.contacts, "expected": counted.expected, "l": cross_l(section, shells, types),
        "g": cross_g(section, lengths, types), "moran": moran(contacts[0], counts),
        "enrichment": enrichment(contacts) if draws else none,
        "outside": envelope(contacts).astype(np.float64) if draws else none,
    }  # fmt: skip


def write_section(path: Path, section: Section) -> None:
    """What a worker needs of a section."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, coords=section.coords, kinds=section.kinds)


def count_stored(section: str, lengths: list[float], types: int, draws: int, seed: int, result: str) -> None:
    """In a worker: count a stored section."""
    with np.load(section, allow_pickle=False) as stored:
        read = Section("", "", stored["coords"], stored["kinds"])
    part = count_part(read, np.array(lengths), types, draws, seed)
    with replacing(Path(result)) as temporary, open(temporary, "wb") as file:
        np.savez(file, **cast("dict[str, Any]", part))


def read_part(path: Path) -> Part:
    """What a worker left."""
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def as_patients(sections: Sequence[Section], parts: Iterable[Part], types: int) -> tuple[Patients, dict[str, Array]]:
    """The sums over the sections of every patient, and the other statistics of each section, stacked."""
    names = {patient: number for number, patient in enumerate(patients_of(sections))}
    contacts, expected = np.zeros(0, np.float32), np.zeros(0)
    rest: dict[str, list[Array]] = {}
    for section, part in zip(sections, parts, strict=True):
        if not contacts.size:
            draws, *shape = part["contacts"].shape
            contacts, expected = np.zeros((draws, len(names), *shape), np.float32), np.zeros((len(names), *shape))
        contacts[:, names[section.patient]] += part["contacts"]
        expected[names[section.patient]] += part["expected"]
        observed = {"observed": part["contacts"][0], "expected": part["expected"]}
        for name, value in {**observed, **{k: v for k, v in part.items() if k not in ("contacts", "expected")}}.items():
            rest.setdefault(name, []).append(value)
    counts = over_patients(type_counts(sections, types), sections)
    patients = Patients(counts, over_patients(np.ones(len(sections)), sections), contacts, expected)
    return patients, {name: np.stack(values) for name, values in rest.items()}


def mean_of_patients(sections: Sequence[Section], values: Array) -> Array:
    """The mean over the sections of each patient that are known (not NaN), NaN without any."""
    known = np.isfinite(values)
    total, count = (over_patients(part, sections) for part in (np.where(known, values, 0), known.astype(np.float64)))
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)

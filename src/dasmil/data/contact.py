"""The contact task: crops of real tissue, positive iff a cell of one type lies within a radius of one of another.

Or how many cells do (``counted_crops``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.spatial import KDTree

from dasmil.errors import DataError, InputError
from dasmil.types import Bag


@dataclass(frozen=True)
class ContactTask:
    """The question and how crops are drawn; lengths in micrometres.

    Crops of both classes are matched in bins of the counts of both types, so that counting cells does not help.
    """

    first: str = "CD8T"
    second: str = "Endothelial/Vim"
    radius_um: float = 15.0
    crop_um: float = 120.0
    candidates: int = 1000
    min_cells: int = 30
    per_patient_and_class: int = 40
    bins: tuple[int, ...] = (1, 2, 3, 4, 6, 9, 14, 20, 30, 50)


def contact_crops(fields: Sequence[Bag], task: ContactTask | None = None, seed: int = 0) -> list[Bag]:
    """Draw crops from whole fields of cells (bags with one-hot types, as ``read_table`` makes them).

    Every crop keeps its patient, so that folds can be made by patient.
    """
    return _crops(fields, task or ContactTask(), 1, seed, fewest=1)


def counted_crops(fields: Sequence[Bag], task: ContactTask | None = None, most: int = 4, seed: int = 0) -> list[Bag]:
    """The same with ``targets["contacts"]``: how many cells of the first type have one of the second within the radius.

    As many crops of every number 0, ..., most in every bin of the counts of both types; each has as many cells of the
    first type at least.
    """
    if most < 1:
        raise InputError(f"most is {most}, expected 1 or more contacts")
    return _crops(fields, task or ContactTask(), most, seed, fewest=most)


def _crops(fields: Sequence[Bag], task: ContactTask, most: int, seed: int, *, fewest: int) -> list[Bag]:
    names = list(fields[0].metadata.get("feature_names", [])) if fields else []
    for name in (task.first, task.second):
        if name not in names:
            raise InputError(f"no cell type {name!r}; the table has {', '.join(names) or 'no named types'}")
    kinds = names.index(task.first), names.index(task.second)
    drawn: list[tuple[Bag, tuple[int, int, int]]] = []
    for number, field in enumerate(fields):
        drawn += _draw(field, task, kinds, np.random.default_rng((seed, number)), most, fewest)
    kept = _matched([key for _, key in drawn], np.random.default_rng((seed, len(fields))), most + 1)
    if not kept:
        raise DataError("no two crops of different classes have equal counts of both types: the fields are too small")
    return [drawn[i][0] for i in kept]


def _draw(
    field: Bag, task: ContactTask, types: tuple[int, int], rng: np.random.Generator, most: int, fewest: int
) -> list[tuple[Bag, tuple[int, int, int]]]:
    """Crops of one field, at most so many of each class, each with its (class, bin of first, bin of second).

    most: 1: whether there is a contact; more: how many, crops with more are left out. fewest: cells of the first type.
    """
    if field.instance_labels is None:
        raise InputError(f"bag {field.bag_id!r} has no cell types: read the table with one_hot")
    coords, kinds = field.coords.numpy(), field.instance_labels.numpy()
    low, high = coords.min(axis=0), coords.max(axis=0) - task.crop_um
    if (high < low).any():
        raise DataError(f"bag {field.bag_id!r} is smaller than one crop of {task.crop_um:g} um")
    corners = rng.uniform(low, high, size=(task.candidates, 2))
    order = np.argsort(coords[:, 0], kind="stable")
    sorted_x = coords[order, 0]
    found: list[tuple[Bag, tuple[int, int, int]]] = []
    taken = [0] * (most + 1)
    for number, corner in enumerate(corners):
        inside = order[np.searchsorted(sorted_x, corner[0]) : np.searchsorted(sorted_x, corner[0] + task.crop_um)]
        inside = np.sort(inside[(coords[inside, 1] >= corner[1]) & (coords[inside, 1] < corner[1] + task.crop_um)])
        a, b = (inside[kinds[inside] == kind] for kind in types)
        if len(inside) < task.min_cells or len(a) < fewest or not len(b):
            continue
        gap, _ = KDTree(coords[b]).query(coords[a])
        contacts = int((gap < task.radius_um).sum())
        value = min(contacts, 1) if most == 1 else contacts
        if value > most or taken[value] >= task.per_patient_and_class:
            continue
        taken[value] += 1
        bins = np.digitize([len(a), len(b)], task.bins)
        found.append((_crop(field, inside, contacts, number), (value, int(bins[0]), int(bins[1]))))
    return found


def _crop(field: Bag, inside: np.ndarray, contacts: int, number: int) -> Bag:
    index = torch.from_numpy(inside)
    assert field.instance_labels is not None
    return replace(
        field,
        features=field.features[index],
        coords=field.coords[index],
        instance_labels=field.instance_labels[index],
        label=int(contacts > 0),
        targets={"contacts": float(contacts)},
        bag_id=f"{field.bag_id}/crop-{number:04d}",
        patient_id=field.patient_id or field.bag_id,
    )


def _matched(keys: Sequence[tuple[int, int, int]], rng: np.random.Generator, classes: int) -> list[int]:
    """As many crops of every class in every bin of both counts; which ones is left to chance."""
    cells: dict[tuple[int, int], list[list[int]]] = {}
    for i, (value, a, b) in enumerate(keys):
        cells.setdefault((a, b), [[] for _ in range(classes)])[value].append(i)
    kept: list[int] = []
    for groups in cells.values():
        n = min(len(group) for group in groups)
        for group in groups:
            kept += [int(i) for i in rng.choice(group, size=n, replace=False)] if n else []
    return sorted(kept)

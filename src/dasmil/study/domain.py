"""Feature moments of training slides, kept with a run, and slides that lie apart from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dasmil.errors import InputError
from dasmil.runs import write_domain
from dasmil.stats.domain import fit_domain
from dasmil.study.notes import Note, silent
from dasmil.study.rounds import Round
from dasmil.types import Bag

Array = NDArray[np.float64]


def moments(bags: Sequence[Bag]) -> tuple[Array, list[str]]:
    """Mean and standard deviation of every feature over the instances of a bag [bags, 2 features]; its patients."""
    rows, patients = [], []
    for i in range(len(bags)):
        bag = bags[i]
        values = bag.features.double()
        rows.append(np.concatenate([values.mean(0).numpy(), values.std(0, correction=0).numpy()]))
        patients.append(bag.patient_id or bag.bag_id)
    return np.array(rows), patients


def note_domain(out: Path, rounds: Sequence[Round], note: Note = silent) -> None:
    """Keep the moments of the bags that a run was trained on (of folds: of all their bags); feature vectors only."""
    first = rounds[0]
    parts = [first.train, first.val or [], *(first.tests.values() if len(rounds) > 1 else ())]
    if first.train[0].features.ndim != 2:
        return
    found = [moments(part) for part in parts if len(part)]
    try:
        domain = fit_domain(np.concatenate([x for x, _ in found]), [who for _, owners in found for who in owners])
    except InputError as error:
        note(f"Unusual slides will not be marked: {error}")
        return
    write_domain(out, domain)

"""Folds of patients, and what each bag counts so that every patient counts the same."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dasmil.candidates.objective import Objective

FOLDS = 5


class Fold(NamedTuple):
    """Bags to learn from, and the bags of other patients."""

    rest: NDArray[np.int64]
    held: NDArray[np.int64]


def patient_folds(objective: Objective, patients: Sequence[str], seed: int = 0, count: int = FOLDS) -> list[Fold]:
    """Folds by patient, balanced by the strata; fewer where patients or bags of a stratum are too few, none below 2."""
    from sklearn.model_selection import StratifiedGroupKFold

    owner = dict(zip(patients, objective.strata.tolist(), strict=True))
    rarest = min(np.unique(list(owner.values()), return_counts=True)[1])
    count = min(count, len(owner), max(2, int(rarest)))
    if count < 2 or len(owner) < 2 * count:
        return []
    splitter = StratifiedGroupKFold(count, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a class with fewer bags than folds
        return [Fold(*pair) for pair in splitter.split(np.zeros(len(patients)), objective.strata, list(patients))]


def patient_weights(patients: Sequence[str]) -> NDArray[np.float64]:
    """One over the number of the patient's bags [bags]."""
    _, place, count = np.unique(np.asarray(patients), return_inverse=True, return_counts=True)
    return 1 / count[place]

"""Bootstrap resamples of bags: patients are drawn, and all bags of a patient come with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


def patient_numbers(patients: Sequence[str]) -> NDArray[np.int64]:
    """The patient of every bag as 0, 1, ... in the order in which the patients come."""
    numbers = {patient: number for number, patient in enumerate(dict.fromkeys(patients))}
    return np.array([numbers[patient] for patient in patients], dtype=np.int64)


def resampled(
    labels: NDArray[np.int64], patients: Sequence[str] | None, resamples: int, seed: int
) -> Iterator[NDArray[np.float64]]:
    """Weights [draws, n] of the bags in stratified bootstrap resamples; every stratum keeps its number of patients.

    A stratum is the patients whose bags are all of one class; those with bags of several classes are one more.
    patients: of every bag; None: every bag is a patient of its own.
    """
    owner = np.arange(len(labels)) if patients is None else patient_numbers(patients)
    count = int(owner.max()) + 1
    lowest, highest = np.full(count, labels.max()), np.full(count, labels.min())
    np.minimum.at(lowest, owner, labels)
    np.maximum.at(highest, owner, labels)
    stratum = np.where(lowest == highest, lowest, labels.max() + 1)
    rng = np.random.default_rng(seed)
    chunk = max(1, min(resamples, 4_000_000 // len(labels)))
    for start in range(0, resamples, chunk):
        drawn = np.zeros((min(chunk, resamples - start), count))
        for s in np.unique(stratum):
            members = np.flatnonzero(stratum == s)
            drawn[:, members] = rng.multinomial(len(members), np.full(len(members), 1 / len(members)), len(drawn))
        yield drawn.take(owner, axis=1)


def interval(draws: Sequence[NDArray[np.float64]] | NDArray[np.float64]) -> list[float]:
    """The middle 95 % of resampled values, low and high; those that are NaN do not count, if all are, the ends are."""
    values = draws if isinstance(draws, np.ndarray) else np.concatenate(draws)
    if np.isnan(values).all():
        return [float("nan"), float("nan")]
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return [float(low), float(high)]


def mean_over_patients(
    values: NDArray[np.float64], patients: Sequence[str], resamples: int, seed: int = 0
) -> list[float]:
    """95 % interval of the mean of values [n], one of every bag, when patients are drawn with all their bags."""
    owner = patient_numbers(patients)
    totals, counts = np.bincount(owner, values), np.bincount(owner)
    drawn = np.random.default_rng(seed).integers(len(counts), size=(resamples, len(counts)))
    return interval(totals[drawn].sum(1) / counts[drawn].sum(1))

"""The smallest difference in contacts that a cohort would find, by planting differences of known size into it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dasmil.space.outcome import Outcome
from dasmil.space.pairs import null_associations
from dasmil.space.patients import Patients, adjust_for, centred, permuted_rows
from dasmil.space.sections import Array

POWER = 0.8
STRENGTHS = (0.0, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0)
"""More contacts than before, as a share: 0.5 is one and a half times as many."""
REPLICATES = 60
NULL_DRAWS = 199
PLANTED_PAIRS = 12
SIZES = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class PlantedPower:
    """smallest: the weakest planted difference found in 80 % of replicates (None: not even the strongest).

    A pair of types has (1 + smallest) times as many contacts within ``length`` in the patients of one class as in the
    others (number and survival: per standard deviation of the target), and the test is adjusted for all pairs.
    """

    patients: int
    pair: tuple[int, int]
    length: float
    smallest: float | None


def planted_power(
    patients: Patients,
    outcome: Outcome,
    lengths: Array,
    *,
    sizes: tuple[float, ...] = (1.0,),
    seed: int = 0,
    replicates: int = REPLICATES,
) -> list[PlantedPower]:
    """For cohorts of several sizes (shares of this one), some pairs and a short, a middle and a long length.

    Every replicate draws patients (with replacement, unless the size is this cohort's own), deals the outcome out at
    random among them, and multiplies the contacts of one pair; so positions, clustering and composition are the
    user's. ``outcome`` gives only its values, not which patient has which.
    """  # fmt: skip
    columns = patients.columns()
    if not columns:
        return []
    pairs = list(dict.fromkeys(pair for _, pair in columns))
    pairs = [pairs[k] for k in np.unique(np.linspace(0, len(pairs) - 1, PLANTED_PAIRS).round().astype(int))]
    some = sorted({len(lengths) // 4, len(lengths) // 2, 3 * len(lengths) // 4})
    cells = [(length, pair) for pair in pairs for length in some if (length, pair) in set(columns)]
    found = []
    for size in sizes:
        n = max(8, round(size * len(patients)))
        hits = np.zeros((len(cells), len(STRENGTHS)))
        for replicate in range(replicates):
            rng = np.random.default_rng((seed, n, replicate))
            hits += _replicate(patients, outcome, columns, cells, n, rng)
        for (length, pair), power in zip(cells, hits / replicates, strict=True):
            found.append(PlantedPower(n, pair, float(lengths[length]), _smallest(power)))
    return found


def _replicate(
    patients: Patients,
    outcome: Outcome,
    columns: list[tuple[int, tuple[int, int]]],
    cells: list[tuple[int, tuple[int, int]]],
    n: int,
    rng: np.random.Generator,
) -> NDArray[np.bool_]:
    """Which planted differences [cells, strengths] one random cohort finds."""
    rows = rng.permutation(n) if n == len(patients) else rng.integers(len(patients), size=n)
    drawn = rng.permutation(n) if n == len(patients) else rng.integers(len(patients), size=n)
    y = outcome.take(drawn).targets()[:, :1]
    basis = adjust_for(patients.composition[rows])
    x = basis.residuals(centred(patients.ratios(0)[rows]))
    null = np.abs(null_associations(x, y, basis.basis, permuted_rows(n, NULL_DRAWS, rng)))
    limit = np.quantile(null.max((1, 2)), 0.95)
    expected = patients.expected[rows][:, patients.kept]
    dose = y - y.min() if outcome.kind == "classes" else (y - y.mean()) / max(float(y.std()), 1e-12)
    left = basis.residuals(y)[:, 0]
    places: dict[tuple[int, int], list[int]] = {}
    for number, (_, pair) in enumerate(columns):
        places.setdefault(pair, []).append(number)
    number_of = {column: number for number, column in enumerate(columns)}
    found = np.zeros((len(cells), len(STRENGTHS)), dtype=bool)
    for k, cell in enumerate(cells):
        own = places[cell[1]]
        part = np.minimum(1.0, expected[:, [number_of[cell]]] / np.maximum(expected[:, own], 1e-9))
        shift = np.log1p(np.array(STRENGTHS)[:, None, None] * part) * dose  # [strengths, n, lengths]
        moved = x[:, own] + shift - basis.basis @ (basis.basis.T @ shift)
        z = (left[:, None] * moved).sum(1) / np.sqrt(np.maximum((left[:, None] ** 2 * moved**2).sum(1), 1e-300))
        found[k] = np.abs(z).max(1) >= limit
    return found


def _smallest(power: Array) -> float | None:
    """Where the power first reaches 80 %, between two strengths on a straight line."""
    power = np.maximum.accumulate(power)
    if power[-1] < POWER:
        return None
    k = int(np.argmax(power >= POWER))
    if k == 0:
        return STRENGTHS[0]
    share = (POWER - power[k - 1]) / (power[k] - power[k - 1])
    return float(STRENGTHS[k - 1] + share * (STRENGTHS[k] - STRENGTHS[k - 1]))

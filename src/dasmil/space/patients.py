"""What is known of every patient: the composition of its sections, and for each pair and length how contacts differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dasmil.space.contacts import log_ratios
from dasmil.space.sections import Array, type_pairs

ADJUSTED = 6
"""Patients for each direction of composition that is adjusted for."""
HELD = 0.7
"""Share of the patients in which chance must expect enough contacts, or the pair at that length is left out."""
SCORES = 48
"""Principal components, at most, by which the contacts of all pairs and lengths enter the prediction."""


@dataclass(frozen=True, eq=False)
class Patients:
    """counts [patients, types] and sections [patients] of each; contacts, expected: sums over its sections.

    contacts [1 + draws, patients, lengths, pairs]: row 0 as observed, then with the types permuted within sections;
    expected [patients, lengths, pairs].
    """

    counts: Array
    sections: Array
    contacts: NDArray[np.float32]
    expected: Array

    def __len__(self) -> int:
        return len(self.counts)

    @cached_property
    def composition(self) -> Array:
        """Shares of the types, their square roots, log instances per section; standardised [patients, 2 types + 1].

        Roots let rare types count, shares common ones; logarithms of shares predict worse (docs/space.md).
        """
        n = self.counts.sum(1, keepdims=True)
        shares = self.counts / n
        return standardised(np.concatenate([shares, np.sqrt(shares), np.log(n / self.sections[:, None])], axis=1))

    @cached_property
    def adjusted(self) -> Adjustment:
        """What the tests of single pairs adjust for."""
        return adjust_for(self.composition)

    @cached_property
    def kept(self) -> NDArray[np.bool_]:
        """The lengths and pairs [lengths, pairs] of which enough contacts are expected in most patients."""
        known = np.isfinite(log_ratios(self.contacts[0], self.expected))
        return known.mean(0) >= HELD

    def ratios(self, row: int) -> Array:
        """log ratios [patients, columns] of the kept lengths and pairs, NaN where a patient has too few."""
        return log_ratios(self.contacts[row], self.expected)[:, self.kept]

    def residuals(self, row: int = 0) -> Array:
        """What composition does not explain of the log ratios [patients, columns]; 0 where a patient has too few."""
        return self.adjusted.residuals(centred(self.ratios(row)))

    def left_of(self, targets: Array) -> float:
        """The share of the targets [patients, targets] that what is adjusted for does not explain, of the clearest."""
        left = (self.adjusted.residuals(targets) ** 2).sum(0)
        return float((left / np.maximum((centred(targets) ** 2).sum(0), 1e-300)).max())

    def columns(self) -> list[tuple[int, tuple[int, int]]]:
        """The length and the pair of types of each column."""
        pairs = type_pairs(self.counts.shape[1])
        return [(int(length), pairs[pair]) for length, pair in np.argwhere(self.kept)]


@dataclass(frozen=True, eq=False)
class Adjustment:
    """An orthonormal basis [patients, k] of what is adjusted for; directions, share: of the composition's variance."""

    basis: Array
    directions: int
    share: float

    def residuals(self, values: Array) -> Array:
        """values [patients, ...] without their part in the basis."""
        return values - self.basis @ (self.basis.T @ values)


def adjust_for(composition: Array) -> Adjustment:
    """Instances per section and the leading directions of composition, as many as the patients can bear."""
    n, size = len(composition), composition[:, -1:]
    u, s, _ = np.linalg.svd(centred(composition[:, :-1]), full_matrices=False)
    clear = int((s > 1e-8 * s.max(initial=1e-300)).sum())
    most = min(clear, max(1, n // ADJUSTED))
    share = float((s[:most] ** 2).sum() / max((s**2).sum(), 1e-300)) if clear else 1.0
    basis, upper = np.linalg.qr(np.concatenate([np.ones((n, 1)), u[:, :most], size], axis=1))
    sound = np.abs(np.diag(upper)) > 1e-8 * np.sqrt(n)
    return Adjustment(basis[:, sound], most, share)


def centred(values: Array) -> Array:
    """Columns without their mean; what is NaN becomes the mean."""
    with np.errstate(invalid="ignore"):
        known = np.isfinite(values)
        mean = np.where(known, values, 0).sum(0) / np.maximum(known.sum(0), 1)
    return np.where(known, values - mean, 0.0)


def standardised(values: Array) -> Array:
    """Columns of mean 0 and variance 1; a constant one becomes 0."""
    found = centred(values)
    spread = found.std(0)
    return found / np.where(spread > 1e-12, spread, 1.0)


def scores(residuals: Array, most: int = SCORES) -> Array:
    """The leading principal components of standardised columns, of mean square 1 in all [patients, components]."""
    x = standardised(residuals)
    values, vectors = np.linalg.eigh(x @ x.T)
    values, vectors = values[::-1][:most].clip(0), vectors[:, ::-1][:, :most]
    return vectors * np.sqrt(values * len(x) / max(values.sum(), 1e-300))


def permuted_rows(n: int, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Permutations [draws, n] of the patients."""
    return np.argsort(rng.random((draws, n)), axis=1)


def resampled_rows(
    strata: Sequence[int] | NDArray[np.int64], draws: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Patients drawn with replacement [draws, n]; every stratum keeps its number."""
    strata = np.asarray(strata)
    found = np.empty((draws, len(strata)), dtype=np.int64)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        found[:, members] = rng.choice(members, (draws, len(members)))
    return found

"""What is known of a patient beside the slide, as numbers, and the plain regressions on it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dasmil.baselines.cox import fit_cox
from dasmil.errors import InputError, shown
from dasmil.stats import FollowUp

Array = NDArray[np.float64]
Values = Sequence[str | None]
RIDGE = 1.0
MISSING = "(missing)"


@dataclass(frozen=True, eq=False)
class CovariateTable:
    """How columns of a table become numbers: learned on training bags, then the same for all.

    A column of numbers is standardised, missing values at the mean and marked in a column of their own; a column of
    words has a column for every word of the training bags but the most frequent, and words that these lack have none.
    """

    numbers: dict[str, tuple[float, float]]
    words: dict[str, list[str]]
    marked: frozenset[str]

    @classmethod
    def fitted(cls, columns: Mapping[str, Values]) -> CovariateTable:
        """Learn from the columns of training bags, cells as they stand in the table, None where empty."""
        numbers: dict[str, tuple[float, float]] = {}
        words: dict[str, list[str]] = {}
        marked = set()
        for name, cells in columns.items():
            there = [cell for cell in cells if cell is not None]
            if not there:
                raise InputError(f"covariate {shown(name)} is empty in all {len(cells)} training bags: leave it out")
            if all(_number(cell) is not None for cell in there):
                known = np.array([_number(cell) for cell in there], dtype=np.float64)
                numbers[name] = (float(known.mean()), float(known.std()) or 1.0)
                if len(there) < len(cells):
                    marked.add(name)
            else:
                filled = [MISSING if cell is None else cell for cell in cells]
                counts = sorted(set(filled), key=lambda word: (-filled.count(word), word))
                words[name] = sorted(counts[1:])
        return cls(numbers, words, frozenset(marked))

    @property
    def names(self) -> list[str]:
        """What each column of ``numbers_of`` is."""
        found = []
        for name in self.numbers:
            found += [name, f"{name} {MISSING}"] if name in self.marked else [name]
        return found + [f"{name} = {word}" for name, kept in self.words.items() for word in kept]

    def numbers_of(self, columns: Mapping[str, Values]) -> Array:
        """The columns as numbers [n, p]."""
        found: list[Array] = []
        for name, (mean, spread) in self.numbers.items():
            values = [_number(cell) if cell is not None else None for cell in columns[name]]
            wrong = [cell for cell, v in zip(columns[name], values, strict=True) if cell is not None and v is None]
            if wrong:
                raise InputError(f"covariate {shown(name)} holds {shown(wrong[0])}, expected a number as in training")
            found.append(np.array([0.0 if v is None else (v - mean) / spread for v in values]))
            if name in self.marked:
                found.append(np.array([float(v is None) for v in values]))
        for name, kept in self.words.items():
            cells = [MISSING if cell is None else cell for cell in columns[name]]
            found += [np.array([float(cell == word) for cell in cells]) for word in kept]
        n = len(next(iter(columns.values())))
        return np.stack(found, axis=1) if found else np.zeros((n, 0))


Predictor = Callable[[Array], Array]


def fit_cox_risk(x: Array, follow: FollowUp) -> Predictor:
    """A Cox regression with ridge 1: log risks of other rows."""
    return fit_cox(x, follow, ridge=RIDGE).risk


def fit_classes(x: Array, labels: NDArray[np.int64], classes: int) -> Predictor:
    """A logistic regression with ridge 1: probabilities of class 1 [n], or of every class [n, classes]."""
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(labels)) < 2:
        raise InputError(f"{len(labels)} training bags are of one class: a logistic regression needs two")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rule = LogisticRegression(C=1 / RIDGE, max_iter=2000).fit(x, labels)

    def predict(rows: Array) -> Array:
        every = np.zeros((len(rows), classes))
        every[:, rule.classes_.astype(int)] = rule.predict_proba(rows)
        return every[:, 1] if classes == 2 else every

    return predict


def fit_number(x: Array, truth: Array) -> Predictor:
    """A linear regression with ridge 1: numbers for other rows."""
    from sklearn.linear_model import Ridge

    return Ridge(alpha=RIDGE).fit(x, truth).predict


def standardised(train: Array, other: Array) -> tuple[Array, Array]:
    """Both in units of the spread of ``train`` about its mean; columns that do not vary there are left out."""
    keep = train.std(0) > 1e-12
    mean, spread = train[:, keep].mean(0), train[:, keep].std(0)
    return (train[:, keep] - mean) / spread, (other[:, keep] - mean) / spread


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if np.isfinite(value) else None

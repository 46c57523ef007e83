"""One metric in subgroups of patients, with intervals and one test of whether the subgroups differ.

Subgroups are named before the results are seen; the test of a column asks whether its subgroups differ at all, and p is
corrected for the number of columns (Holm). Subgroups with few patients are counted but have no figure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasmil.errors import InputError
from dasmil.stats.compared import holm
from dasmil.stats.concordance import harrell
from dasmil.stats.delong import aurocs, heterogeneity
from dasmil.stats.follow_up import FollowUp
from dasmil.stats.resample import interval, resampled
from dasmil.stats.small import FEWEST, auroc_interval, class_patients, honest_interval

Array = NDArray[np.float64]

SMALLEST_GROUP = 10
"""Fewer patients than this identify people and say nothing: their figures are not reported."""
MOST_GROUPS = 12
RESAMPLES = 1000
_CUT = re.compile(r"\s*(.+?)\s*(>=|<=|>|<)\s*(-?[0-9.]+)\s*")


@dataclass(frozen=True)
class SubgroupRow:
    """A subgroup: patients and events in it, and the metric with its interval; why: the reason where it has none."""

    column: str
    name: str
    patients: int
    events: int
    value: float
    low: float
    high: float
    why: str = ""


@dataclass(frozen=True)
class SubgroupTest:
    """Whether the subgroups of a column differ: p of Cochran's Q, p_holm corrected for the columns; why: or why not."""

    column: str
    p: float
    p_holm: float
    why: str = ""


@dataclass(frozen=True)
class Subgroups:
    """The table of all columns."""

    metric: str
    overall: SubgroupRow
    rows: Sequence[SubgroupRow]
    tests: Sequence[SubgroupTest]

    def as_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads."""
        return {
            "metric": self.metric, "overall": dict(vars(self.overall)), "rows": [dict(vars(r)) for r in self.rows],
            "tests": [dict(vars(t)) for t in self.tests],
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Subgroups:
        """What `as_json` wrote."""

        def row(one: Mapping[str, Any]) -> SubgroupRow:
            return SubgroupRow(**_numbers(one))

        tests = [SubgroupTest(**_numbers(t)) for t in value["tests"]]
        return cls(value["metric"], row(value["overall"]), [row(r) for r in value["rows"]], tests)


def _numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record; JSON has null for NaN."""
    return {name: math.nan if value is None else value for name, value in record.items()}


def column_of(text: str) -> str:
    """The column that a subgroup asks for: "age" of "age>65"."""
    found = _CUT.fullmatch(text)
    return found[1] if found else text.strip()


def groups_of(text: str, values: Sequence[str | None]) -> list[str | None]:
    """The subgroup of every bag from the cells of its column: the cell itself, or by a cut such as "age>65"."""
    found = _CUT.fullmatch(text)
    if found is None:
        named = {v for v in values if v is not None}
        if len(named) > MOST_GROUPS:
            raise InputError(
                f"the column {text!r} has {len(named)} different values, expected at most {MOST_GROUPS} subgroups: "
                f"give a cut for a number, for example {text}>65, or another column"
            )
        return list(values)
    column, sign, cut = found[1], found[2], float(found[3])
    inside = {">": np.greater, ">=": np.greater_equal, "<": np.less, "<=": np.less_equal}[sign]
    other = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}[sign]
    groups: list[str | None] = []
    for value in values:
        try:
            number = None if value is None else float(value)
        except ValueError:
            raise InputError(f"the column {column!r} has {value!r}, expected numbers for {text}") from None
        groups.append(None if number is None else f"{sign} {cut:g}" if inside(number, cut) else f"{other} {cut:g}")
    return groups


def class_subgroups(
    columns: Mapping[str, Sequence[str | None]],
    labels: ArrayLike,
    probabilities: ArrayLike,
    patients: Sequence[str],
    *,
    smallest: int = SMALLEST_GROUP,
) -> Subgroups:
    """AUROC (of more than two classes the mean of one against the rest) in every subgroup."""
    y, p = np.asarray(labels, dtype=np.int64), np.asarray(probabilities, dtype=np.float64)
    classes = 2 if p.ndim == 1 else p.shape[1]

    def scored(rows: NDArray[np.bool_]) -> tuple[float, float, float, float, str]:
        own = [patients[i] for i in np.flatnonzero(rows).tolist()]
        counts = class_patients(y[rows], own, classes)
        if int(counts.min()) < FEWEST:
            lacking = int(counts.argmin())
            return (*_NOTHING, math.nan, f"{counts[lacking]} patients of class {lacking}, fewer than {FEWEST}")
        if p.ndim == 1:
            found = aurocs(y[rows], [p[rows]], own)
            value, variance = float(found.values[0]), float(found.covariance[0, 0])
        else:
            each = [aurocs(y[rows] == c, [p[rows][:, c]], own) for c in range(classes)]
            value = float(np.mean([one.values[0] for one in each]))
            variance = float(np.mean([one.covariance[0, 0] for one in each]))
        draws = np.concatenate([_macro(y[rows], p[rows], w) for w in resampled(y[rows], own, RESAMPLES, 0)])
        low, high = honest_interval("auroc", value, interval(draws), [counts])
        if not variance > 1e-9:  # perfect: the spread that Newcombe's interval has stands in
            low, high = auroc_interval(value, [counts])
            variance = ((high - low) / 2 / 1.96) ** 2
        return value, low, high, variance, ""

    events = (y == 1) if classes == 2 else np.ones(len(y), dtype=bool)
    return _table("auroc", columns, patients, events, scored, smallest)


def survival_subgroups(
    columns: Mapping[str, Sequence[str | None]],
    follow: FollowUp,
    risk: ArrayLike,
    patients: Sequence[str],
    *,
    smallest: int = SMALLEST_GROUP,
) -> Subgroups:
    """Harrell's C-index in every subgroup; its spread is that of resamples of patients."""
    r = np.asarray(risk, dtype=np.float64)

    def scored(rows: NDArray[np.bool_]) -> tuple[float, float, float, float, str]:
        own = [patients[i] for i in np.flatnonzero(rows).tolist()]
        part, risks = follow[rows], r[rows]
        events = len({who for who, seen in zip(own, part.events) if seen})
        if events < FEWEST:
            return (*_NOTHING, math.nan, f"{events} patients with the event, fewer than {FEWEST}")
        value = float(harrell(part, risks)[0])
        draws = np.concatenate([harrell(part, risks, w) for w in resampled(part.strata, own, RESAMPLES, 0)])
        variance = float(np.nanvar(draws))
        if not variance > 1e-9:
            return value, math.nan, math.nan, math.nan, ""
        return (value, *interval(draws), variance, "")  # pyright: ignore[reportReturnType]

    return _table("c_index", columns, patients, follow.events, scored, smallest)


_NOTHING = (math.nan, math.nan, math.nan)


def _macro(y: NDArray[np.int64], p: Array, weights: Array) -> Array:
    from dasmil.stats.compared import macro_auroc

    return macro_auroc(p, y, weights)


def _table(
    metric: str,
    columns: Mapping[str, Sequence[str | None]],
    patients: Sequence[str],
    events: NDArray[np.bool_],
    scored: Any,
    smallest: int,
) -> Subgroups:
    owners = np.array(patients)

    def row(column: str, name: str, rows: NDArray[np.bool_]) -> tuple[SubgroupRow, float]:
        count, seen = len(set(owners[rows])), len(set(owners[rows & events]))
        if count < smallest:
            return SubgroupRow(column, name, count, 0, *_NOTHING, f"fewer than {smallest} patients"), math.nan
        value, low, high, variance, why = scored(rows)
        return SubgroupRow(column, name, count, seen, value, low, high, why), variance

    everyone = np.ones(len(owners), dtype=bool)
    rows: list[SubgroupRow] = []
    tests: list[SubgroupTest] = []
    for column, cells in columns.items():
        groups = groups_of(column, cells)
        known = sorted({g for g in groups if g is not None})
        own, variances, members = [], [], []
        for name in known:
            inside = np.array([g == name for g in groups])
            found, variance = row(column, name, inside)
            own.append(found)
            variances.append(variance)
            members.append(set(owners[inside]))
        if missing := np.array([g is None for g in groups]).nonzero()[0].tolist():
            count = len({patients[i] for i in missing})
            own.append(SubgroupRow(column, "not known", count, 0, *_NOTHING, "not a subgroup"))
            variances.append(math.nan)
        tests.append(_tested(column, own, variances, members))
        rows += own
    known_p = [t.p for t in tests if math.isfinite(t.p)]
    corrected = iter(holm(known_p))
    tests = [replace(t, p_holm=next(corrected)) if math.isfinite(t.p) else t for t in tests]
    return Subgroups(metric, row("", "all", everyone)[0], rows, tests)


def _tested(
    column: str, rows: Sequence[SubgroupRow], variances: Sequence[float], members: Sequence[set[str]]
) -> SubgroupTest:
    if sum(math.isfinite(v) for v in variances) < 2:
        return SubgroupTest(column, math.nan, math.nan, "fewer than two subgroups have a figure")
    if len(set().union(*members)) < sum(map(len, members)):
        return SubgroupTest(
            column, math.nan, math.nan, "patients are in several subgroups, which a test would need apart"
        )
    return SubgroupTest(column, heterogeneity([r.value for r in rows], variances), math.nan)

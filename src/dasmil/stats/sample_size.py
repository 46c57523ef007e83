"""Patients that a planned study needs, for an AUROC or a C-index: to tell it from a value, or to reach a width."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.stats import norm

from dasmil.errors import InputError
from dasmil.stats.chance import LEVEL, POWER, hanley_mcneil

MOST = 10_000_000


@dataclass(frozen=True)
class StudySize:
    """Patients in all, of them with the event (or of the positive class), and what they are enough for."""

    patients: int
    events: int
    purpose: str


def auroc_study(
    expected: float, prevalence: float, *, against: float = 0.5, level: float = LEVEL, power: float = POWER
) -> StudySize:
    """Patients for telling an expected AUROC from another (chance, or what is claimed elsewhere) at this power.

    Spread of Hanley and McNeil (Radiology 143, 1982) at both values; one bag a patient.
    """
    _check(expected, prevalence)
    if not 0.5 <= against < expected:
        raise InputError(f"the AUROC to beat is {against:g}, expected 0.5 or more and less than {expected:g}")
    alpha, beta = float(norm.isf((1 - level) / 2)), float(norm.isf(1 - power))

    def enough(n: int) -> bool:
        m = _events(n, prevalence)
        null, true = (hanley_mcneil(value, m, n - m) for value in (against, expected))
        return alpha * null + beta * true <= expected - against

    return _sized(enough, prevalence, f"to tell an AUROC of {expected:g} from {against:g} (power {power:g})")


def auroc_width(expected: float, prevalence: float, half_width: float, *, level: float = LEVEL) -> StudySize:
    """Patients for a confidence interval of an AUROC that is half_width wide to either side."""
    _check(expected, prevalence)
    _check_width(half_width)
    alpha = float(norm.isf((1 - level) / 2))

    def enough(n: int) -> bool:
        m = _events(n, prevalence)
        return alpha * hanley_mcneil(expected, m, n - m) <= half_width

    return _sized(enough, prevalence, f"for an interval of an AUROC of {expected:g} +- {half_width:g}")


def c_index_study(
    expected: float, event_share: float, *, against: float = 0.5, level: float = LEVEL, power: float = POWER
) -> StudySize:
    """Patients for telling an expected C-index from another.

    A C-index counts pairs in which the earlier one has the event. Its variance is taken as that of an AUROC of the
    patients with the event against all others: an approximation on the safe side of random orders under light
    censoring, which the tests compare with simulated follow-up.
    """
    found = auroc_study(expected, event_share, against=against, level=level, power=power)
    return StudySize(found.patients, found.events, found.purpose.replace("an AUROC", "a C-index"))


def c_index_width(expected: float, event_share: float, half_width: float, *, level: float = LEVEL) -> StudySize:
    """Patients for a confidence interval of a C-index that is half_width wide to either side; as `c_index_study`."""
    found = auroc_width(expected, event_share, half_width, level=level)
    return StudySize(found.patients, found.events, found.purpose.replace("an AUROC", "a C-index"))


def _sized(enough: object, share: float, purpose: str) -> StudySize:
    """The smallest number of patients that is enough, by doubling and halving."""
    assert callable(enough)
    high = max(4, math.ceil(2 / min(share, 1 - share)))
    while not enough(high):
        high *= 2
        if high > MOST:
            raise InputError(f"more than {MOST:,} patients would be needed {purpose}: choose a larger difference")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return StudySize(high, _events(high, share), purpose)


def _events(n: int, share: float) -> int:
    return min(n - 1, max(1, round(n * share)))


def _check(expected: float, share: float) -> None:
    if not 0.5 < expected < 1:
        raise InputError(f"the expected value is {expected:g}, expected one between 0.5 and 1")
    if not 0 < share < 1:
        raise InputError(f"the share of patients with the event is {share:g}, expected one between 0 and 1")


def _check_width(half_width: float) -> None:
    if not 0 < half_width < 0.5:
        raise InputError(f"the half width is {half_width:g}, expected one between 0 and 0.5, for example 0.05")

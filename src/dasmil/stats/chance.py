"""What a set of bags can show: the figure that blind guesses reach by luck, and the one a set of this size finds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

from dasmil.stats.concordance import harrell
from dasmil.stats.follow_up import FollowUp

LEVEL = 0.95
POWER = 0.8
EXACT_PAIRS = 2500
"""Up to so many pairs of a positive and a negative the distribution is computed, above it is taken as normal."""


def smallest_auroc(sets: Sequence[tuple[int, int]], level: float = LEVEL) -> float | None:
    """The smallest AUROC better than chance: a useless model reaches it in (1 - level) / 2 of all cases at most.

    sets: numbers of positive and negative bags (or patients, where a patient has several bags); of several sets, the
    folds of a cross-validation, the mean of their AUROCs is meant. One set of at most 2,500 pairs has the exact
    distribution of the Mann-Whitney statistic, others a normal one of the same variance, (P + N + 1) / (12 P N).
    None: not even an AUROC of 1 can be better than chance.
    """
    known = [(p, n) for p, n in sets if p > 0 and n > 0]
    if not known:
        return None
    tail = (1 - level) / 2
    if len(known) == 1 and known[0][0] * known[0][1] <= EXACT_PAIRS:
        chances = mann_whitney(*known[0])
        reached = np.cumsum(chances[::-1])[::-1]  # of this many pairs in the right order, or more
        enough = np.flatnonzero(reached <= tail * (1 + 1e-9))
        return float(enough[0] / (len(chances) - 1)) if len(enough) else None
    found = 0.5 + float(norm.isf(tail)) * math.sqrt(sum(_null_variance(p, n) for p, n in known)) / len(known)
    return found if found <= 1 else None


def auroc_to_find(sets: Sequence[tuple[int, int]], level: float = LEVEL, power: float = POWER) -> float | None:
    """The true AUROC that sets of this size show to be better than chance in a share ``power`` of all cases.

    The spread of an AUROC is that of Hanley and McNeil (Radiology 143, 1982). None: there is none below 1.
    """
    least, known = smallest_auroc(sets, level), [(p, n) for p, n in sets if p > 0 and n > 0]
    if least is None:
        return None

    def short(a: float) -> float:
        spread = math.sqrt(sum(hanley_mcneil(a, p, n) ** 2 for p, n in known)) / len(known)
        return a - float(norm.isf(1 - power)) * spread - least

    return float(brentq(short, least, 1.0)) if short(1.0) > 0 else None  # pyright: ignore[reportArgumentType]


GUESSES = 400
"""Random orders of patients by which the spread of a C-index is measured; of a known one they do as well as a formula
that would have to know how times are censored."""


def c_index_to_tell(
    sets: Sequence[FollowUp], level: float = LEVEL, power: float = POWER
) -> tuple[float | None, float | None]:
    """The smallest C-index (of several sets, folds, their mean) that is told from 0.5, and the true one that a share
    ``power`` of such sets tell; None where there is none up to 1. Its spread is that of random orders, about normal.
    """
    rng = np.random.default_rng(0)
    spreads = [float(np.nanstd([harrell(one, rng.random(len(one)))[0] for _ in range(GUESSES)]))
               for one in sets if one.events.any() and len(one) > 1]  # fmt: skip
    known = [spread for spread in spreads if spread > 0]
    if not known:
        return None, None
    spread = math.sqrt(sum(one**2 for one in known)) / len(known)
    return _within(0.5 + float(norm.isf((1 - level) / 2)) * spread, 0.5 + _reach(level, power) * spread)


def correlation_to_tell(
    sizes: Sequence[int], level: float = LEVEL, power: float = POWER
) -> tuple[float | None, float | None]:
    """The same of a correlation of what is predicted with what is true, told from 0, in sets of so many patients.

    By Fisher's transformation, whose variance is 1 / (n - 3); sets of fewer than four patients tell nothing.
    """
    known = [n for n in sizes if n > 3]
    if not known:
        return None, None
    spread = math.sqrt(sum(1 / (n - 3) for n in known)) / len(known)
    return _within(math.tanh(float(norm.isf((1 - level) / 2)) * spread), math.tanh(_reach(level, power) * spread))


def _reach(level: float, power: float) -> float:
    return float(norm.isf((1 - level) / 2) + norm.isf(1 - power))


def _within(*values: float) -> tuple[float | None, float | None]:
    smallest, true = (value if value <= 1 else None for value in values)
    return smallest, true


def hanley_mcneil(auroc: float, positives: int, negatives: int) -> float:
    """Standard error of an AUROC of so many positives and negatives."""
    both, one = auroc / (2 - auroc), 2 * auroc**2 / (1 + auroc)
    variance = auroc * (1 - auroc) + (positives - 1) * (both - auroc**2) + (negatives - 1) * (one - auroc**2)
    return math.sqrt(max(0.0, variance) / (positives * negatives))


def mann_whitney(positives: int, negatives: int) -> NDArray[np.float64]:
    """Chances [P N + 1] that blind guesses put 0, 1, ... pairs of a positive and a negative in the right order.

    By the recursion of Mann and Whitney (Annals of Mathematical Statistics 18, 1947): the highest of all is a positive
    (then it is above every negative) or a negative.
    """
    rows = [np.ones(1) for _ in range(negatives + 1)]  # without positives there is no pair
    for p in range(1, positives + 1):
        new = [np.ones(1)]
        for n in range(1, negatives + 1):
            found = np.zeros(p * n + 1)
            found[n:] = p / (p + n) * rows[n]
            found[: p * (n - 1) + 1] += n / (p + n) * new[n - 1]
            new.append(found)
        rows = new
    return rows[negatives]


def _null_variance(positives: int, negatives: int) -> float:
    return (positives + negatives + 1) / (12 * positives * negatives)

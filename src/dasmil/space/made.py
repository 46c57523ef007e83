"""Made cohorts and planted rules: what the study is tried on, because there the answer is known."""

from __future__ import annotations

import numpy as np
from scipy.spatial import KDTree

from dasmil.space.sections import Array, Kinds, Section


def made_section(
    name: str, patient: str, shares: Array, n: int, rng: np.random.Generator, *, side: float = 500.0, patches: int = 0
) -> Section:
    """Random positions in a square; types by their shares, in ``patches`` patches of one favoured type each (0: none).

    Patches make types cluster (autocorrelation) without any rule between two types.
    """
    coords = rng.uniform(0, side, (n, 2))
    kinds = rng.choice(len(shares), n, p=shares)
    if patches:
        centres = rng.uniform(0, side, (patches, 2))
        favoured = rng.choice(len(shares), patches, p=shares)
        inside = KDTree(centres).query(coords)[1]
        kinds = np.where(rng.random(n) < 0.5, favoured[inside], kinds)
    return Section(name, patient, coords, kinds.astype(np.int64))


def plant(section: Section, first: int, second: int, length: float, strength: float, rng: np.random.Generator) -> Kinds:
    """Types in which a share ``strength`` of the first type's instances has moved to within ``length`` of the second's.

    A far instance of the first type and a near one of a third type swap their types: composition and positions stay.
    """
    kinds = section.kinds.copy()
    others = np.flatnonzero(kinds == second)
    if not len(others):
        return kinds
    near = KDTree(section.coords[others]).query(section.coords)[0] <= length
    far = rng.permutation(np.flatnonzero((kinds == first) & ~near))
    free = rng.permutation(np.flatnonzero((kinds != first) & (kinds != second) & near))
    count = min(round(strength * int((kinds == first).sum())), len(far), len(free))
    give, take = far[:count], free[:count]
    kinds[give], kinds[take] = kinds[take], first
    return kinds

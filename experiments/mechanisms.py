"""Made cohorts of ordinary size, one for each way in which a label may hang on instances and positions.

Tissue is a blob of grid tiles with regions of eight common types; rare types A and B are added. Noise has variance one
in every feature or a falling spectrum, every slide has a shift of its own, and there may be a second scanner. How far
types lie apart is given in standard deviations of the noise. What default training makes of them, out of fold:

Example: python experiments/mechanisms.py pair share infiltration --out mechanisms/

One file a cohort is left in --out; finished folds are kept there, and the same command goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from cyclopts import App
from hundred_slides import measure, summary
from numpy.typing import NDArray

from dasmil.types import Bag

TYPES, A, B = 8, 8, 9
TILE, RADIUS = 64.0, 400.0
"""In um. Pairs that decide lie within the radius, others beyond 1.3 times of it."""
app = App()

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass
class Slide:
    """Grid places [n, 2] in um and the type of every tile [n]."""

    places: Floats
    kinds: Ints

    def to(self, some: Ints) -> Floats:
        """The distance of every tile to the nearest of some."""
        return np.sqrt(((self.places[:, None] - self.places[some][None]) ** 2).sum(-1)).min(1)


def tissue(rng: np.random.Generator, n: int) -> Slide:
    """A blob of n tiles with regions of the common types."""
    side = int(1.7 * np.sqrt(n)) + 4
    y, x = np.mgrid[:side, :side]
    field = 0.05 * rng.standard_normal((side, side))
    for _ in range(5):
        (cx, cy), spread = rng.uniform(0.2 * side, 0.8 * side, 2), rng.uniform(0.12, 0.3) * side
        field += rng.uniform(0.5, 1) * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * spread**2))
    rows, columns = np.unravel_index(np.sort(np.argsort(-field.ravel())[:n]), field.shape)
    grid = np.stack([columns, rows], 1)
    centres = grid[rng.choice(n, rng.integers(6, 14), replace=False)]
    nearest = ((grid[:, None] - centres[None]) ** 2).sum(-1).argmin(1)
    return Slide((grid + 0.5) * TILE, rng.integers(0, TYPES, len(centres))[nearest])


def somewhere(rng: np.random.Generator, slide: Slide, count: int) -> tuple[Ints, Floats]:
    """So many tiles anywhere, and how far all others lie from the nearest of them (these themselves: NaN)."""
    chosen = rng.choice(len(slide.kinds), count, replace=False)
    distance = slide.to(chosen)
    distance[chosen] = np.nan
    return chosen, distance


Plant = Callable[[np.random.Generator, Slide, int], bool]
"""Puts rare types on a slide of a label; False where the tissue has no room for them."""


def pair(rng: np.random.Generator, slide: Slide, label: int) -> bool:
    """Four to nine tiles of A and of B; positive: two to four B lie within the radius of an A, negative: none does."""
    a, b = rng.integers(4, 10, 2)
    first, distance = somewhere(rng, slide, a)
    near, far = np.flatnonzero(distance <= RADIUS), np.flatnonzero(distance > 1.3 * RADIUS)
    count = min(int(rng.integers(2, 5)), b) if label else 0
    if len(near) < count or len(far) < b:
        return False
    slide.kinds[first] = A
    slide.kinds[rng.choice(near, count, replace=False)] = B
    slide.kinds[rng.choice(far, b - count, replace=False)] = B
    return True


def same(rng: np.random.Generator, slide: Slide, label: int) -> bool:
    """Four to nine tiles of A, all far from each other; positive: one of them lies within the radius of another."""
    chosen: list[int] = []
    for tile in rng.permutation(len(slide.kinds))[:2000]:
        if len(chosen) < 4 + rng.integers(6) and (not chosen or slide.to(np.array(chosen))[tile] > 1.3 * RADIUS):
            chosen.append(int(tile))
    near = np.flatnonzero(slide.to(np.array(chosen[:1])) <= RADIUS)
    near = near[~np.isin(near, chosen)]
    if len(chosen) < 4 or not len(near):
        return False
    if label:
        chosen[-1] = int(rng.choice(near))
    slide.kinds[chosen] = A
    return True


def presence(rng: np.random.Generator, slide: Slide, label: int) -> bool:
    """Four to nine tiles of B; positive: as many of A besides."""
    n = len(slide.kinds)
    slide.kinds[rng.choice(n, rng.integers(4, 10), replace=False)] = B
    if label:
        slide.kinds[rng.choice(n, rng.integers(4, 10), replace=False)] = A
    return True


def share(rng: np.random.Generator, slide: Slide, label: int) -> bool:
    """2 to 10 % of the tiles are of A; positive: 8 to 16 %."""
    part = rng.uniform(0.08, 0.16) if label else rng.uniform(0.02, 0.10)
    slide.kinds[rng.random(len(slide.kinds)) < part] = A
    return True


def composition(rng: np.random.Generator, slide: Slide, label: int) -> bool:
    """One of the common types is scattered over more of the slide."""
    part = 0.25 * rng.beta(2, 4) + (0.18 if label else 0.06)
    slide.kinds[rng.random(len(slide.kinds)) < part] = 0
    return True


def infiltration(rng: np.random.Generator, slide: Slide, label: int) -> bool:
    """20 to 39 tiles of A and of B; 10 to 40 % of the B lie within the radius of an A, positive: 60 to 90 %."""
    a, b = rng.integers(20, 40, 2)
    first, distance = somewhere(rng, slide, a)
    near, far = np.flatnonzero(distance <= RADIUS), np.flatnonzero(distance > 1.3 * RADIUS)
    count = int(b * (rng.uniform(0.6, 0.9) if label else rng.uniform(0.1, 0.4)))
    if len(near) < count or len(far) < b - count:
        return False
    slide.kinds[first] = A
    slide.kinds[rng.choice(near, count, replace=False)] = B
    slide.kinds[rng.choice(far, b - count, replace=False)] = B
    return True


def region(rng: np.random.Generator, slide: Slide, label: int) -> bool:
    """Four to nine tiles of A far from all regions of a common type; positive: three of them lie near one."""
    own = np.flatnonzero(slide.kinds == 0)
    if len(own) < 30:
        return False
    distance, a = slide.to(own), int(rng.integers(4, 10))
    near = np.flatnonzero((distance <= RADIUS) & (slide.kinds != 0))
    far = np.flatnonzero(distance > 1.3 * RADIUS)
    if len(near) < 3 or len(far) < a:
        return False
    chosen = rng.choice(far, a, replace=False)
    if label:
        chosen[:3] = rng.choice(near, 3, replace=False)
    slide.kinds[chosen] = A
    return True


def far(rng: np.random.Generator, slide: Slide, label: int) -> bool:
    """As pair, but negative slides have the pairs."""
    return pair(rng, slide, 1 - label)


def either(rng: np.random.Generator, slide: Slide, label: int) -> bool:
    """Positive: as in pair, or else as in same, and no B; negative: as in pair."""
    by_pair = rng.random() < 0.5
    return same(rng, slide, 1) if label and not by_pair else pair(rng, slide, label)


def band(rng: np.random.Generator, slide: Slide, label: int) -> bool:
    """Four to six tiles of A, six to nine of B, two within 250 um of an A; positive: three lie 450 to 750 um away."""
    a, b = rng.integers(4, 7), rng.integers(6, 10)
    first, distance = somewhere(rng, slide, a)
    near, off = np.flatnonzero(distance <= 250), np.flatnonzero(distance > 1000)
    between = np.flatnonzero((distance > 450) & (distance < 750))
    if len(near) < 2 or len(between) < 3 or len(off) < b:
        return False
    slide.kinds[first] = A
    slide.kinds[rng.choice(near, 2, replace=False)] = B
    count = 3 if label else 0
    slide.kinds[rng.choice(between, count, replace=False)] = B
    slide.kinds[rng.choice(off, b - 2 - count, replace=False)] = B
    return True


def clump(rng: np.random.Generator, slide: Slide, label: int) -> bool:
    """16 to 29 tiles of A anywhere; positive: all within 330 um of one place."""
    n, a = len(slide.kinds), int(rng.integers(16, 30))
    if not label:
        slide.kinds[rng.choice(n, a, replace=False)] = A
        return True
    near = np.flatnonzero(slide.to(np.array([rng.integers(n)])) <= 330)
    if len(near) < a:
        return False
    slide.kinds[rng.choice(near, a, replace=False)] = A
    return True


def nearer(rng: np.random.Generator, slide: Slide, label: int) -> bool:
    """Four to seven tiles of A and of B, each B about 550 um from the nearest A, positive: 250 um (log-normal, 0.5)."""
    a, b = rng.integers(4, 8, 2)
    first, distance = somewhere(rng, slide, a)
    for _ in range(b):
        wanted = np.exp(rng.normal(np.log(250 if label else 550), 0.5))
        tile = int(np.nanargmin(np.abs(distance - wanted) + rng.uniform(0, 20, len(distance))))
        distance[tile] = np.nan
        slide.kinds[tile] = B
    slide.kinds[first] = A
    return True


def nothing(rng: np.random.Generator, slide: Slide, label: int) -> bool:
    """Tiles of A and B anywhere, whatever the label."""
    slide.kinds[rng.choice(len(slide.kinds), 14, replace=False)] = np.repeat([A, B], 7)
    return True


@dataclass(frozen=True)
class Cohort:
    """apart: distance of two types in standard deviations of the noise; falling: spectrum of noise (and of types)."""

    title: str
    plant: Plant
    apart: float = 16.0
    falling: bool = False
    scanners: int = 1
    wrong: float = 0.0
    """Share of labels that are wrong."""
    slides: int = 100
    features: int = 384
    tiles: tuple[int, int] = (400, 1200)

    def bags(self, seed: int) -> list[Bag]:
        rng = np.random.default_rng([seed, 77])
        f = self.features
        noise = 3 * np.arange(1, f + 1) ** -0.5 if self.falling else np.ones(f)
        turn = np.linalg.qr(rng.standard_normal((f, f)))[0]
        types = noise * rng.standard_normal((TYPES + 2, f)) * self.apart / np.sqrt(2 * f)
        gains = [np.ones(f), *(1 + 0.2 * rng.standard_normal((self.scanners - 1, f)))]
        offsets = [np.zeros(f), *(noise * rng.standard_normal((self.scanners - 1, f)))]
        bags = []
        for number in range(self.slides):
            label = number % 2
            slide = self._slide(rng, label)
            x = types[slide.kinds] + noise * rng.standard_normal((len(slide.kinds), f))
            x += 0.2 * noise * rng.standard_normal(f)
            scanner = int(rng.integers(self.scanners))
            x = (x * gains[scanner] + offsets[scanner]) @ turn.T
            given = 1 - label if rng.random() < self.wrong else label
            features, coords = torch.from_numpy(x).float(), torch.from_numpy(slide.places).float()
            bags.append(Bag(features=features, coords=coords, unit="um", label=given, bag_id=f"slide{number:04d}"))
        return bags

    def _slide(self, rng: np.random.Generator, label: int) -> Slide:
        while True:
            slide = tissue(rng, int(np.exp(rng.uniform(*np.log(self.tiles)))))
            if self.plant(rng, slide, label):
                return slide


COHORTS = {
    "pair": Cohort("pair", pair),
    "pair-scanners": Cohort("pair, falling spectrum, two scanners", pair, falling=True, scanners=2),
    "pair-8": Cohort("pair, types 8 apart", pair, apart=8),
    "pair-8-scanners": Cohort("pair, types 8 apart, falling spectrum, two scanners", pair, 8, True, 2),
    "pair-6": Cohort("pair, types 6 apart", pair, apart=6),
    "pair-wrong": Cohort("pair, one label in ten wrong", pair, wrong=0.1),
    "pair-wide": Cohort("pair, 1,000 tiles with 1,024 features", pair, features=1024, tiles=(1000, 1001)),
    "same": Cohort("two tiles of one type near each other", same),
    "presence": Cohort("a few tiles of a type are there or not", presence, falling=True),
    "presence-6": Cohort("the same, types 6 apart", presence, apart=6),
    "share": Cohort("share of a rare type", share),
    "share-8": Cohort("share of a rare type, types 8 apart, falling spectrum", share, apart=8, falling=True),
    "composition": Cohort("share of a common type", composition),
    "composition-4": Cohort("share of a common type, types 4 apart, falling, two scanners", composition, 4, True, 2),
    "infiltration": Cohort("most of one type near another, or few", infiltration),
    "infiltration-8": Cohort("the same, types 8 apart, falling spectrum", infiltration, apart=8, falling=True),
    "region": Cohort("a rare type near a region of a common one", region),
    "none": Cohort("no signal", nothing),
    "far": Cohort("no pair within the length, negative slides have one", far),
    "either": Cohort("a pair of two types, or of one without the other", either),
    "band": Cohort("three of one type between two lengths of another", band),
    "clump": Cohort("tiles of a type in one place, or scattered", clump),
    "nearer": Cohort("one type nearer to another, overlapping", nearer),
    "many": Cohort(
        "pair, 1,000 slides of 200 to 400 tiles, 256 features", pair, slides=1000, features=256, tiles=(200, 400)
    ),
}


@app.default
def main(*names: str, out: Path, model: str = "das-mil", folds: int = 5, seeds: int = 1, draw: int = 0) -> None:
    """Train on every cohort named (all, if none is), and print one line each."""
    for name in names or COHORTS:
        record = measure(COHORTS[name].bags(draw), out / f"{name}.json", model=model, folds=folds, seeds=seeds)
        print(f"{COHORTS[name].title}: {summary(record)}", flush=True)


if __name__ == "__main__":
    app()

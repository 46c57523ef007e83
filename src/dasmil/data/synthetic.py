"""A made cohort: slides of thousands of tiles whose label depends on a distance, and on nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.spatial import KDTree

from dasmil.data.store import write_bag
from dasmil.errors import DataError, InputError
from dasmil.files import replacing
from dasmil.types import Bag

N_TYPES = 6
FIRST, SECOND = 0, 1
TYPE_NAMES = ("type A", "type B", *(f"background {k}" for k in range(1, N_TYPES - 1)))


@dataclass(frozen=True)
class MadeCohort:
    """How slides are made; lengths in micrometres.

    A slide is positive iff a tile of the first tissue type lies within ``distance_um`` of a tile of the second.
    The number and size of the islands of either type, and all features, are drawn before the label is known: a model
    that is blind to coordinates can do no better than chance. Features of a tissue type have the root mean square
    ``separation``, plus noise in every one of them, plus a ``shift`` of the whole slide (stain, scanner), drawn at
    random. Nearest pairs keep ``margin`` away from the distance.
    """

    distance_um: float = 1500.0
    margin: float = 0.1
    tile_um: float = 256.0
    tiles: tuple[int, int] = (1000, 3000)
    islands: tuple[int, int] = (2, 4)
    island_tiles: tuple[int, int] = (3, 8)
    in_features: int = 768
    noise: float = 0.2
    separation: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        if self.distance_um <= 2 * self.tile_um:
            raise InputError(
                f"distance_um is {self.distance_um:g}, expected more than two tiles ({2 * self.tile_um:g})"
            )
        if not 0 <= self.margin < 0.5:
            raise InputError(f"margin is {self.margin}, expected a share from 0 to 0.5")

    def slide(self, bag_id: str, label: int, seed: tuple[int, ...]) -> Bag:
        """One slide with this label; the seed decides everything."""
        rng = np.random.default_rng(seed)
        n = int(rng.integers(self.tiles[0], self.tiles[1] + 1))
        grid = _tissue(n, rng)
        first = [
            int(rng.integers(*self.island_tiles, endpoint=True))
            for _ in range(rng.integers(*self.islands, endpoint=True))
        ]
        second = [
            int(rng.integers(*self.island_tiles, endpoint=True))
            for _ in range(rng.integers(*self.islands, endpoint=True))
        ]
        kinds = self._place(grid, first, second, label, rng)
        direction = _directions(self.in_features)
        features = self.separation * direction[kinds]
        features += self.noise * rng.standard_normal((n, self.in_features), dtype=np.float32)
        if self.shift:
            features += self.shift * rng.standard_normal(self.in_features, dtype=np.float32)
        coords = (grid + 0.5) * self.tile_um
        near = _pair_distance(grid, kinds) * self.tile_um <= self.distance_um
        key = np.zeros(n, dtype=bool)
        for kind, rows in ((FIRST, near.any(axis=1)), (SECOND, near.any(axis=0))):
            key[np.flatnonzero(kinds == kind)[rows]] = True
        return Bag(
            features=torch.from_numpy(features.astype(np.float32)),
            coords=torch.from_numpy(coords.astype(np.float32)),
            unit="um",
            bag_id=bag_id,
            label=label,
            patient_id=bag_id,
            instance_labels=torch.from_numpy(kinds),
            key_instances=torch.from_numpy(key),
            metadata={
                "tile_um": self.tile_um,
                "planted_distance_um": self.distance_um,
                "encoder": "made",
                "instance_label_names": list(TYPE_NAMES),
            },
        )

    def _place(
        self, grid: np.ndarray, first: list[int], second: list[int], label: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Tissue type of every tile: mixed background, and islands of both types at distances that fit the label."""
        near = (1 - self.margin) * self.distance_um / self.tile_um
        far = (1 + self.margin) * self.distance_um / self.tile_um
        background = _background(grid, rng)
        for _ in range(2000):
            kinds = background.copy()
            if label:
                # A pair of islands is put at a distance drawn evenly up to the planted one; the rest lies anywhere.
                wanted = float(rng.uniform(1.0, near))
                placed = _islands(grid, kinds, first, FIRST, rng) and _islands(
                    grid, kinds, second, SECOND, rng, near=(FIRST, wanted)
                )
            else:
                placed = _islands(grid, kinds, first, FIRST, rng) and _islands(
                    grid, kinds, second, SECOND, rng, far=(FIRST, far)
                )
            if placed:
                gap = float(_pair_distance(grid, kinds).min())
                if (gap <= near) if label else (gap >= far):
                    return kinds
        raise DataError(
            f"no room for islands {self.distance_um:g} um apart on {len(grid)} tiles of {self.tile_um:g} um; "
            "use more tiles"
        )


def make_cohort(n: int, seed: int = 0, design: MadeCohort | None = None, name: str = "made") -> list[Bag]:
    """n slides, half of them positive, in memory; equal arguments give equal slides."""
    design = design or MadeCohort()
    return [design.slide(f"{name}-{i:04d}", i % 2, (seed, i)) for i in range(n)]


def write_made_cohort(
    folder: Path,
    n: int,
    seed: int = 0,
    design: MadeCohort | None = None,
    splits: Sequence[str] | None = None,
    classes: tuple[str, str] = ("0", "1"),
) -> Path:
    """Write n slides as bag files and their label table (with a split for each, if given); returns the table's path."""
    design = design or MadeCohort()
    bags = folder / "bags"
    bags.mkdir(parents=True, exist_ok=True)
    lines = ["slide,label,patient" if splits is None else "slide,label,patient,split"]
    for i in range(n):
        bag = design.slide(f"made-{i:04d}", i % 2, (seed, i))
        write_bag(bags / f"{bag.bag_id}.h5", bag, dtype="float16")
        split = "" if splits is None else f",{splits[i]}"
        lines.append(f"{bag.bag_id},{classes[i % 2]},{bag.patient_id}{split}")
    table = folder / "labels.csv"
    with replacing(table) as temporary:
        temporary.write_text("\n".join(lines) + "\n")
    return table


def _directions(in_features: int) -> np.ndarray:
    """The mean feature of each tissue type: the same for all cohorts, with mean square one."""
    vectors = np.random.default_rng(1).standard_normal((N_TYPES, in_features), dtype=np.float32)
    return vectors * (np.sqrt(in_features) / np.linalg.norm(vectors, axis=1, keepdims=True))


def _tissue(n: int, rng: np.random.Generator) -> np.ndarray:
    """n cells of a square grid that form one rounded piece of tissue, lower left at (0, 0)."""
    side = int(np.ceil(np.sqrt(n) * 1.8)) + 2
    y, x = np.mgrid[:side, :side]
    angle = np.arctan2(y - side / 2, x - side / 2)
    waves = sum(rng.normal(0, 0.1) * np.cos(k * angle + rng.uniform(0, 2 * np.pi)) for k in range(2, 6))
    aspect = rng.uniform(0.8, 1.25)
    radius = np.hypot((x - side / 2) * aspect, (y - side / 2) / aspect) / (1 + waves)
    chosen = np.argsort(radius.ravel(), kind="stable")[:n]
    grid = np.stack([x.ravel()[chosen], y.ravel()[chosen]], axis=1).astype(np.float64)
    return grid - grid.min(axis=0)


def _background(grid: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The other tissue types, in patches around random seeds."""
    seeds = grid[rng.choice(len(grid), size=min(40, len(grid)), replace=False)]
    types = rng.integers(2, N_TYPES, size=len(seeds))
    nearest = ((grid[:, None] - seeds[None]) ** 2).sum(-1).argmin(1)
    return types[nearest].astype(np.int64)


def _islands(
    grid: np.ndarray,
    kinds: np.ndarray,
    sizes: list[int],
    kind: int,
    rng: np.random.Generator,
    near: tuple[int, float] | None = None,
    far: tuple[int, float] | None = None,
) -> bool:
    """Put islands of one type on free tiles: the first ``near`` another type, or all ``far`` from it."""
    for number, size in enumerate(sizes):
        free = kinds > SECOND
        if near is not None and number == 0:
            gap = _gap(grid, kinds, near[0])
            free &= np.abs(gap - near[1]) < 0.75
        if far is not None:
            free &= _gap(grid, kinds, far[0]) >= far[1]
        if not free.any():
            return False
        centre = grid[rng.choice(np.flatnonzero(free))]
        allowed = kinds > SECOND
        if far is not None:
            allowed &= _gap(grid, kinds, far[0]) >= far[1]
        if near is not None and number == 0:
            allowed &= _gap(grid, kinds, near[0]) >= near[1] - 0.75
        order = np.flatnonzero(allowed)
        order = order[np.argsort(((grid[order] - centre) ** 2).sum(1), kind="stable")]
        if len(order) < size:
            return False
        kinds[order[:size]] = kind
    return True


def _gap(grid: np.ndarray, kinds: np.ndarray, kind: int) -> np.ndarray:
    """Distance of every tile to the nearest one of a type, in tiles."""
    return np.asarray(KDTree(grid[kinds == kind]).query(grid)[0])


def _pair_distance(grid: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Distances [first, second] between all tiles of the two types, in tiles."""
    a, b = grid[kinds == FIRST], grid[kinds == SECOND]
    return np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1))

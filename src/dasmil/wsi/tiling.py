"""The regular grid of tiles, of a fixed size in micrometres whatever the scanner."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dasmil.errors import DataError

MAX_TILES = 2_000_000


@dataclass(frozen=True)
class Grid:
    """Tiles of tile_um x tile_um from the top left corner; those at the right and bottom may reach over the edge."""

    columns: int
    rows: int
    tile_um: float

    def __len__(self) -> int:
        return self.columns * self.rows

    def corners(self) -> tuple[np.ndarray, np.ndarray]:
        """Left and top of every tile in micrometres, row by row."""
        index = np.arange(len(self))
        return (index % self.columns) * self.tile_um, (index // self.columns) * self.tile_um

    def centres(self, index: np.ndarray) -> np.ndarray:
        """Centres [k, 2] (x, y) of some tiles in micrometres, float32."""
        where = np.stack([index % self.columns, index // self.columns], axis=1)
        return ((where + 0.5) * self.tile_um).astype(np.float32)


def make_grid(width_um: float, height_um: float, tile_um: float) -> Grid:
    """The grid that covers a slide; a last row or column of less than a thousandth of a tile is rounding."""
    columns, rows = (max(1, math.ceil(length / tile_um - 1e-3)) for length in (width_um, height_um))
    if columns * rows > MAX_TILES:
        raise DataError(
            f"{columns} x {rows} tiles of {tile_um:g} um: more than {MAX_TILES:,}; make the tiles larger (--tile-um)"
        )
    return Grid(columns, rows, tile_um)

"""2DMambaMIL: a state space that runs over the grid of tiles, along rows and then along columns."""

from __future__ import annotations

from typing import Annotated, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.errors import InputError
from dasmil.models.ab_mil import AttentionPooling
from dasmil.models.bag_by_bag import BagByBag
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.mamba_mil import HIDDEN, Mixer, begin_linear
from dasmil.models.options import Count, Length, Probability, Range, Size
from dasmil.nn import Linear
from dasmil.nn.cells import Occupancy, cells_of
from dasmil.nn.draws import dropout
from dasmil.nn.nystrom import LayerNorm
from dasmil.nn.recompute import again_in_backward

Cells = Annotated[int, Range(1, 4096)]
MOST_CELLS = 1 << 20


class RMSNorm(nn.Module):
    """x / sqrt(mean x^2 + 1e-5) * w."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight


class GridLayer(nn.Module):
    """x + Mixer(RMS(x)) for the cells of a grid, row by row; the convolution before the scan crosses row ends."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm, self.mixer = RMSNorm(features), Mixer(features, "none", 1)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        return x + self.mixer(self.norm(x), (height, width))


class Mamba2DAggregator(BagByBag):
    """GELU(W z + b) in the cells of a grid, a learned vector in empty ones; layers, LN, attention over all cells."""

    def __init__(
        self,
        in_features: int,
        features: int,
        layers: int,
        dropout: float,
        tile: float,
        height: int | None,
        width: int | None,
    ) -> None:
        super().__init__()
        self.enter = Linear(in_features, features)
        self.empty = nn.Parameter(nn.init.uniform_(torch.empty(features)))
        self.layers = nn.ModuleList(GridLayer(features) for _ in range(layers))
        self.norm = LayerNorm(features)
        self.pooling = AttentionPooling(features, HIDDEN, gated=False)
        self.dropout, self.tile, self.height, self.width = dropout, tile, height, width

    def bag(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Aggregated:
        occupied = Occupancy(cells_of(coords, self.tile, section, 1))
        height, width = self._size(occupied.cells)
        e = dropout(F.gelu(self.enter(z)), self.dropout, self.training)
        place = occupied.cells[:, 1] * width + occupied.cells[:, 0]
        x = self.empty.expand(height * width, -1).index_copy(0, place, occupied.mean(e))
        for layer in self.layers:
            x = again_in_backward(layer, x, height, width)
        found = self.pooling(self.norm(x), coords, None, None)
        assert found.instance_scores is not None
        return found._replace(instance_scores=occupied.shared(found.instance_scores[place]))

    def _size(self, cells: Tensor) -> tuple[int, int]:
        """(height, width) of the grid: as asked for, or as large as the bounding box of the instances."""
        columns, rows = (int(cells[:, axis].max()) + 1 for axis in (0, 1))
        height, width = max(self.height or 1, rows), max(self.width or 1, columns)
        if height * width > MOST_CELLS:
            raise InputError(
                f"the grid of a bag has {height:,} x {width:,} cells of {self.tile:g}, expected at most "
                f"{MOST_CELLS:,} cells: tile is the spacing of neighbouring instances, in the unit of the coordinates"
            )
        return height, width


class Mamba2D(MILModel):
    """2DMambaMIL: a selective scan over the grid of tiles, then attention pooling over all cells, empty ones included.

    tile: the spacing of instances, in the unit of the coordinates (1 where none is given; training takes the distance
    to the nearest neighbour). height, width: the least cells of the grid, which the program takes from the largest
    slide of the data set; none: the bounding box of each bag, so that slides need no common size. Empty cells take part
    in scan and pooling, so that the two are not the same model. Departs from the program: its PyTorch scan takes decays
    that it has overwritten, ours is the paper's recurrence; instances in one cell are averaged.
    """

    name = "2dmamba-mil"
    paper = "Zhang et al. 2025, 2DMamba: efficient state space model for image representation"
    position = "relative"
    scale_neighbour = 1
    idle_parameters = ("aggregator.pooling.weight.bias",)

    def __init__(
        self,
        *,
        features: Size = 128,
        layers: Count = 1,
        tile: Length | None = None,
        height: Cells | None = None,
        width: Cells | None = None,
        dropout: Probability = 0.25,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        size = self.distance_scale if tile is None else tile
        self.aggregator = Mamba2DAggregator(self.encoded, features, layers, dropout, size, height, width)
        self.classifier = self.make_classifier(features)
        begin_linear(self.aggregator, self.classifier)

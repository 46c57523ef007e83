"""GABMIL: cells of a window exchange their features before gated attention pools them."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from dasmil.models.bag_by_bag import BagByBag
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.feather import GatedPooling
from dasmil.models.options import Count, Length, Probability, Size
from dasmil.nn import Linear
from dasmil.nn.cells import Occupancy, cells_of, find_cells
from dasmil.nn.draws import dropout
from dasmil.nn.initial import xavier_normal
from dasmil.nn.recompute import part_again

NUMBERS = 1 << 22
"""Features that are gathered at a time."""
Mixing = Literal["block", "grid", "both"]


class CellMixing(nn.Module):
    """Z_p + ReLU(sum_q W_pq Z_q + b_p) over the places p, q of a window, the same for every feature."""

    def __init__(self, places: int, dropout: float) -> None:
        super().__init__()
        self.mix = Linear(places, places)
        self.dropout = dropout

    def forward(self, table: Tensor, members: Tensor, place: Tensor) -> Tensor:
        """[n, f] of n cells: rows ``members`` [n, places] of the table are their windows, place [n] is their own."""
        rows = max(1, NUMBERS // (members.shape[1] * table.shape[1]))
        parts = zip(members.split(rows), place.split(rows), strict=True)
        found = [
            part_again(self._mixed, table, own, at, self.mix.weight[at], self.mix.bias[at].unsqueeze(-1))
            for own, at in parts
        ]
        return torch.cat(found)

    def _mixed(self, table: Tensor, members: Tensor, place: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        heard = (weight.unsqueeze(-2) @ table[members]).squeeze(-2) + bias
        own = table[members.gather(1, place.unsqueeze(-1)).squeeze(-1)]
        return own + dropout(heard, self.dropout, self.training).relu()


class GABMILAggregator(BagByBag):
    """Windows of neighbouring cells ("block") and of cells spread evenly over the slide ("grid") mix; then pooling.

    Empty cells are zeros and take part. Only cells that an instance hears are computed.
    """

    def __init__(
        self, in_features: int, features: int, hidden: int, mixing: str, window: int, tile: float, dropout: float
    ) -> None:
        super().__init__()
        self.block = CellMixing(window**2, dropout) if mixing in ("block", "both") else None
        self.grid = CellMixing(window**2, dropout) if mixing in ("grid", "both") else None
        self.pooling = GatedPooling(in_features, features, hidden, dropout=dropout, inside=0.25 if dropout else 0.0)
        self.window, self.tile = window, tile

    def mixed(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """The instances [n, f] after they have heard the cells of their windows."""
        occupied = Occupancy(cells_of(coords, self.tile, section, self.window))
        known, table = occupied.cells, torch.cat([occupied.mean(z), z.new_zeros(1, z.shape[1])])
        if self.grid is None:
            return self._blocks(table, known, known)[occupied.of]
        members, place = self._spread(known)
        if self.block is not None:
            heard, index = members.flatten(0, 1).unique(dim=0, return_inverse=True)
            return self.grid(self._blocks(table, known, heard), index.view(members.shape[:2]), place)[occupied.of]
        return self.grid(table, find_cells(known, members) % len(table), place)[occupied.of]

    def _blocks(self, table: Tensor, known: Tensor, wanted: Tensor) -> Tensor:
        """The wanted cells [m, f] after their window of neighbours; the last row of the table is an empty cell."""
        assert self.block is not None
        w = self.window
        within = torch.cartesian_prod(torch.arange(w), torch.arange(w)).flip(-1).to(known.device)  # row by row
        corner = wanted // w * w
        members = find_cells(known, corner.unsqueeze(1) + within) % len(table)
        place = (wanted - corner) @ torch.tensor([1, w], device=known.device)
        return self.block(table, members, place)

    def _spread(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """For each cell those that are whole strides away [m, places, 2], and which of them it is [m]."""
        w = self.window
        stride = (cells.amax(0) // w + 1).unsqueeze(0)
        apart = torch.cartesian_prod(torch.arange(w), torch.arange(w)).flip(-1).to(cells.device) * stride
        return (cells % stride).unsqueeze(1) + apart, cells // stride @ torch.tensor([1, w], device=cells.device)

    def bag(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Aggregated:
        return self.pooling(self.mixed(z, coords, section), coords, None, section)

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each token of one bag adds to the embedding [n, features]; it has heard its window by then."""
        return self.pooling.parts(self.mixed(z, coords, section), coords, section)


class GABMIL(MILModel):
    """GABMIL: the spatial information mixing module over windows of tiles, then the gated attention of CLAM.

    mixing: "block" windows of ``window`` x ``window`` neighbouring cells (3 is the published best), "grid" as many
    cells spread over the slide, "both" one after the other. tile: the spacing of instances, in the unit of the
    coordinates (1 where none is given; training takes the distance to the nearest neighbour). Departs from the
    program: cells are counted from the slide's first instance, so that a shift changes nothing; instances in one cell
    are averaged (there one overwrites the other).
    """

    name = "gabmil"
    paper = "Keshvarikhojasteh et al. 2025, A spatially-aware multiple instance learning framework"
    position = "relative"
    scale_neighbour = 1
    idle_parameters = ("aggregator.pooling.weight.bias",)

    def __init__(
        self,
        *,
        mixing: Mixing = "block",
        window: Count = 3,
        tile: Length | None = None,
        features: Size = 512,
        hidden: Size = 256,
        dropout: Probability = 0.25,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        size = self.distance_scale if tile is None else tile
        self.aggregator = GABMILAggregator(self.encoded, features, hidden, mixing, window, size, dropout)
        self.classifier = self.make_classifier(features)
        xavier_normal(self.aggregator, self.classifier)

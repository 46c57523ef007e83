"""SPAN: windows of tiles at three scales, and one global token that all tiles report to."""

from __future__ import annotations

import math
from typing import NamedTuple, Unpack

import torch
from torch import Tensor, nn

from dasmil.errors import InputError
from dasmil.models.bag_by_bag import BagByBag
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Length, Probability, Size
from dasmil.nn import Linear
from dasmil.nn.cells import Occupancy, cells_of, find_cells
from dasmil.nn.draws import dropout
from dasmil.nn.initial import torch_default
from dasmil.nn.nystrom import LayerNorm
from dasmil.nn.recompute import part_again

WINDOW, STAGES = 6, 3
REACH = 2 * WINDOW - 1
"""Differences of two places in one window, per axis."""
FACTOR = 2 ** (STAGES - 1)
"""Tiles along a cell of the last stage."""
APART = 2 * FACTOR * WINDOW
"""Empty columns between sections: no window of any stage reaches across."""
HEAD = 64
NUMBERS = 1 << 22
"""Keys that are gathered at a time."""


class Tokens(NamedTuple):
    """Tokens x [n, d] in cells [n, 2] ordered by column and row; corner [n]: those of the padding."""

    x: Tensor
    cells: Tensor
    corner: Tensor


def place(cells: Tensor) -> tuple[Tensor, Tensor]:
    """The cells moved into the middle of a box that two halvings divide evenly, and the size of the box [2]."""
    extent = cells.amax(0) + 1
    size = 2 * FACTOR + FACTOR * (extent - FACTOR).clamp(min=0).add(FACTOR - 1).div(FACTOR, rounding_mode="floor")
    return cells + (size - extent).div(2, rounding_mode="floor"), size


def neighbours(tokens: Tokens, shift: bool) -> tuple[Tensor, Tensor]:
    """Of each token those in its window, and with ``shift`` those in its shifted one; -1 where a cell is empty.

    Their numbers [n, 36 or 72], and which entry of the table of biases each has.
    """
    cells = tokens.cells
    within = torch.cartesian_prod(torch.arange(WINDOW), torch.arange(WINDOW)).to(cells.device)
    window = cells.div(WINDOW, rounding_mode="floor").unsqueeze(1)
    wanted = window * WINDOW + within
    found = find_cells(cells, wanted)
    if shift:
        half = WINDOW // 2
        moved = (cells + half).div(WINDOW, rounding_mode="floor").unsqueeze(1) * WINDOW - half + within
        seen = (moved.div(WINDOW, rounding_mode="floor") == window).all(-1)
        found = torch.cat([found, find_cells(cells, moved).masked_fill(seen, -1)], 1)
        wanted = torch.cat([wanted, moved], 1)
    itself = found == torch.arange(len(cells), device=cells.device).unsqueeze(1)
    found = found.masked_fill(itself & tokens.corner.unsqueeze(1), -1)
    apart = wanted - cells.unsqueeze(1) + WINDOW - 1
    return found, apart[..., 0] * REACH + apart[..., 1]


class WindowBlock(nn.Module):
    """Attention in windows with a bias for each offset, attention with the global token, and an MLP."""

    def __init__(self, features: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.norm2 = LayerNorm(features), LayerNorm(features)
        self.query, self.key, self.value = (Linear(features, features) for _ in range(3))
        self.global_query, self.global_key, self.global_value = (Linear(features, features) for _ in range(3))
        self.table = nn.Parameter(nn.init.normal_(torch.empty(heads, REACH, REACH), std=0.02))
        self.out = Linear(features, features)
        self.up, self.down = Linear(features, 2 * features), Linear(2 * features, features)
        self.heads, self.dropout = heads, dropout

    def forward(self, tokens: Tokens, g: Tensor, shift: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens [n, d] and global token [1, d] after the block, and what attention the latter gave each token [n]."""
        x, own = self.norm(tokens.x), self.norm(g)
        found, entries = neighbours(tokens, shift)
        q, k, v, few = self.query(x), self.key(x), self.value(x), max(1, NUMBERS // (found.shape[1] * x.shape[1]))
        rows = zip(q.split(few), found.split(few), entries.split(few), strict=True)
        local = torch.cat([part_again(self._local, k, v, self.table, *part) for part in rows])
        value = self.global_value(torch.cat([own, x]))
        heard = local + value[:1] * ~tokens.corner.unsqueeze(1)
        read, weights = self._global(own, torch.cat([own, x]), value, tokens.corner)
        return self._mlp(tokens.x + self.out(heard)), self._mlp(g + self.out(read)), weights

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))

    def _local(self, k: Tensor, v: Tensor, table: Tensor, q: Tensor, found: Tensor, entries: Tensor) -> Tensor:
        keys, values = (self._split(y[found.clamp(min=0)]) for y in (k, v))  # [rows, neighbours, heads, d / heads]
        scores = torch.einsum("rhc,rjhc->rhj", self._split(q), keys) / math.sqrt(keys.shape[-1])
        scores = scores + table.flatten(1)[:, entries].transpose(0, 1)
        none = (found < 0).unsqueeze(1)
        weights = scores.masked_fill(none, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(none, 0)
        weights = dropout(weights, self.dropout, self.training)
        return torch.einsum("rhj,rjhc->rhc", weights, values).flatten(1)

    def _global(self, own: Tensor, all_: Tensor, value: Tensor, corner: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (self._split(y).transpose(0, 1) for y in (self.global_query(own), self.global_key(all_), value))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        hidden = torch.cat([corner.new_zeros(1), corner])
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        read = dropout(weights, self.dropout, self.training) @ v
        return read.transpose(0, 1).flatten(1), weights[:, 0, 1:].mean(0)

    def _mlp(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm2(x)).relu())


class Halving(nn.Module):
    """Four cells become one: the mean over occupied ones of K * LN(x), K a kernel of 2 x 2 for every feature."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm, self.global_norm = LayerNorm(features), LayerNorm(features)
        self.kernel = nn.Parameter(nn.init.uniform_(torch.empty(features, 2, 2), -0.5, 0.5))

    def forward(self, tokens: Tokens, g: Tensor) -> tuple[Tokens, Tensor]:
        cells, of = tokens.cells.div(2, rounding_mode="floor").unique(dim=0, return_inverse=True)
        column, row = (tokens.cells % 2).unbind(1)
        given = self.norm(tokens.x) * self.kernel[:, column, row].T
        total = given.new_zeros(len(cells), given.shape[1]).index_add(0, of, given)
        corner = torch.zeros_like(of[: len(cells)], dtype=torch.bool).index_fill(0, of[tokens.corner], True)
        counts = torch.bincount(of, minlength=len(cells)).unsqueeze(1)
        return Tokens(total / counts, cells, corner), self.global_norm(g)


class SPANAggregator(BagByBag):
    """W z in the cells of a grid; three stages; the normalised sum of their global tokens [features]."""

    def __init__(
        self, in_features: int, features: int, heads: int, tile: float, as_published: bool, dropout: float
    ) -> None:
        super().__init__()
        self.enter, self.enter_global = Linear(in_features, features, bias=False), Linear(in_features, features)
        self.token = nn.Parameter(nn.init.normal_(torch.empty(1, in_features), std=1e-4))
        self.halvings = nn.ModuleList(Halving(features) for _ in range(STAGES - 1))
        self.blocks = nn.ModuleList(WindowBlock(features, heads, dropout) for _ in range(STAGES))
        self.norm = LayerNorm(features)
        self.tile, self.as_published, self.dropout = tile, as_published, dropout

    def stages(self, z: Tensor, cells: Tensor) -> list[tuple[Tokens, Tensor, Tensor]]:
        """After each stage: the tokens, the global token [1, d] and the attention that it gave them."""
        cells, size = place(cells)
        corner = torch.zeros(len(cells), dtype=torch.bool, device=cells.device)
        if self.as_published:  # two empty tokens in opposite corners of the box
            z = torch.cat([z.new_zeros(1, z.shape[1]), z, z.new_zeros(1, z.shape[1])])
            cells = torch.cat([torch.zeros_like(cells[:1]), cells, size.unsqueeze(0) - 1])
            corner = torch.nn.functional.pad(corner, (1, 1), value=True)
        tokens = Tokens(dropout(self.enter(z), self.dropout, self.training), cells, corner)
        g, found = self.enter_global(self.token), []
        for stage, block in enumerate(self.blocks):
            if stage:
                tokens, g = self.halvings[stage - 1](tokens, g)
            even = bool((size.div(2**stage, rounding_mode="floor") % WINDOW == 0).all())
            x, g, weights = block(tokens, g, not (self.as_published and even))
            tokens = tokens._replace(x=x)
            found.append((tokens, g, weights))
        return found

    def bag(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Aggregated:
        occupied = Occupancy(cells_of(coords, self.tile, section, APART))
        stages = self.stages(occupied.mean(z), occupied.cells)
        summed = torch.stack([g for _, g, _ in stages]).sum(0)
        tokens, _, weights = stages[0]
        embedding = dropout(self.norm(summed).squeeze(0), self.dropout, self.training)
        return Aggregated(embedding, instance_scores=occupied.shared(weights[~tokens.corner]))


class SPAN(MILModel):
    """SPAN: sparse attention in plain and shifted windows of 6 x 6 cells at three scales, and one global token.

    tile: the spacing of instances, in the unit of the coordinates (1 where none is given; training takes the distance
    to the nearest neighbour). features: None for half of the encoded ones; heads: None for one in 64 of these.
    as_published: as the program runs, with two empty tokens in the corners of the bounding box, which cut tiles in the
    same cell off from the global token, and without shifted windows where both sides of the box are multiples of 6.
    Without it, as it is meant: no empty tokens, always shifted windows. The local attention of the last stage is idle:
    only the global token is read after it. Departs from the program: cells are rounded from the slide's first
    instance, instances in one cell are averaged.
    """

    name = "span"
    paper = "Wu et al. 2026, Learning spatial-preserving hierarchical representations for digital pathology"
    position = "relative"
    scale_neighbour = 1
    idle_parameters = (
        "aggregator.blocks.*.key.bias",
        "aggregator.blocks.*.global_key.bias",
        *(f"aggregator.blocks.{STAGES - 1}.{part}" for part in ("query.*", "key.*", "value.*", "table")),
    )

    def __init__(
        self,
        *,
        features: Size | None = None,
        heads: Count | None = None,
        tile: Length | None = None,
        as_published: bool = False,
        dropout: Probability = 0.05,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        size = max(1, self.encoded // 2) if features is None else features
        shared = max(1, size // HEAD) if heads is None else heads
        if size % shared:
            raise InputError(f"features is {size}, which {shared} heads cannot share evenly: use a multiple")
        length = self.distance_scale if tile is None else tile
        self.aggregator = SPANAggregator(self.encoded, size, shared, length, as_published, dropout)
        self.classifier = self.make_classifier(size)
        torch_default(self.aggregator, self.classifier)

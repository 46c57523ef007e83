"""The rows that decided, and a single instance seen from both of its sides: as one that looks, as one looked at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dasmil.attribution.contributions import place
from dasmil.attribution.rows import PairAttention, Rows


@dataclass(frozen=True)
class Partner:
    """The other end of a pair: an instance j that i attends to, or that attends to i.

    weight: the attention that one gives to the other; contribution: of the pair to the logit, None before the account
    has been made.
    """

    j: int
    head: int
    weight: float
    distance: float | None
    phi: float | None
    contribution: float | None


@dataclass(frozen=True)
class Sides:
    """The two sides of an instance: what its row took from all, and what the deciding rows took from it.

    Half of the two together is its contribution (where the last layer is the only one).
    watchers: how many rows decided.
    """

    looks: float
    looked_at: float
    watchers: int


@dataclass(frozen=True, eq=False)
class DecidingRows:
    """The rows of the last layer that the logit is made of: which won each feature, and their norms by head.

    winners: [f], of a maximum, else None; rows: of each head, row numbers and norms; weights: [h, n, o].
    """

    winners: Tensor | None
    rows: tuple[tuple[Tensor, Tensor], ...]
    weights: Tensor

    def row_parts(self, attention: PairAttention, rows: Rows, i: int) -> Tensor:
        """What the single row i took from every instance [n], as parts of the logit."""
        g = self.weights[rows.head, i]
        parts = attention.value[rows.head] @ g
        if rows.mix is not None and attention.value_embed is not None:
            parts = parts + rows.mix.rows((attention.value_embed[rows.head] @ g)[None])[0]
        return parts * rows.weights[0]

    def column_parts(self, attention: PairAttention, head: int, j: int) -> tuple[Rows, Tensor]:
        """The deciding rows of a head at column j, and what each took from instance j [r], as parts of the logit."""
        index, norm = self.rows[head]
        rows = attention.column(head, index, norm, j)
        g = self.weights[head, index]
        parts = g @ attention.value[head, j]
        if rows.mix is not None and attention.value_embed is not None:
            parts = parts + rows.mix.rows(g @ attention.value_embed[head].T)[:, 0]
        return rows, parts * rows.weights[:, 0]

    def watchers(self, attention: PairAttention, j: int, top: int) -> list[Partner]:
        """The rows that look at instance j, by the size of what they took."""
        found: list[Partner] = []
        for head in range(attention.heads):
            rows, parts = self.column_parts(attention, head, j)
            found += [
                Partner(
                    j=int(rows.index[r]),
                    head=head,
                    weight=float(rows.weights[r, 0]),
                    contribution=float(parts[r]),
                    **place(attention, rows, r, j, column=0),
                )
                for r in parts.abs().topk(min(top, len(parts))).indices.tolist()
            ]
        return sorted(found, key=lambda p: -abs(p.contribution or 0.0))[:top]

    def sides(self, attention: PairAttention, i: int) -> Sides:
        """What instance i took, and what was taken from it."""
        looks = looked_at = 0.0
        for head, (index, _) in enumerate(self.rows):
            if bool((index == i).any()):
                rows = attention.rows(head, torch.tensor([i], device=index.device))
                looks += float(self.row_parts(attention, rows, i).double().sum())
            looked_at += float(self.column_parts(attention, head, i)[1].double().sum())
        return Sides(looks, looked_at, sum(len(index) for index, _ in self.rows))

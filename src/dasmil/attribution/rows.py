"""Single rows of distance-aware attention, computed exactly and without the n x n matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dasmil.ops import das_attention
from dasmil.ops.das_attention.bias import ROOM, distance_bias
from dasmil.ops.das_attention.phi import PHI

CHUNK_ELEMENTS = 1 << 22  # largest [rows, n] block held at a time: 16 MB in float32
FLAT = 0.01
"""A phi that changes by less than this between distance 0 and the extent of a bag is the same at every distance."""
STEPS = 1024  # distances at which that is looked at


@dataclass(frozen=True, eq=False)
class Mix:
    """The coefficients c_m(delta_ij) of a block of pairs, b_ij = sum_m c_m E_m, applied without the vectors b_ij.

    phi: [r, n], between two embeddings (c = phi, 1 - phi); bins: [r, n] indices, one embedding each. One of the two.
    related: [r, n], 0 where a pair has no distance, or None.
    """

    phi: Tensor | None
    bins: Tensor | None
    related: Tensor | None

    def _masked(self, value: Tensor) -> Tensor:
        return value if self.related is None else value * self.related

    def rows(self, a: Tensor) -> Tensor:
        """sum_m c_ijm a_im for a [r, m]."""
        if self.phi is not None:
            return self._masked(self.phi * (a[:, :1] - a[:, 1:]) + a[:, 1:])
        assert self.bins is not None
        return self._masked(a.gather(1, self.bins))

    def columns(self, a: Tensor) -> Tensor:
        """sum_m c_ijm a_jm for a [n, m]."""
        if self.phi is not None:
            return self._masked(self.phi * (a[:, 0] - a[:, 1]) + a[:, 1])
        assert self.bins is not None
        return self._masked(a.T.gather(0, self.bins))

    def product(self, a: Tensor) -> Tensor:
        """sum_ml c_ijm c_ijl a_ml for a [m, m]."""
        if self.phi is not None:
            p, q = self.phi, 1 - self.phi
            return self._masked(p * p * a[0, 0] + p * q * (a[0, 1] + a[1, 0]) + q * q * a[1, 1])
        assert self.bins is not None
        return self._masked(a.diagonal()[self.bins])


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one head's attention: index [r], weights [r, c], distance [r, c] in the unit of the coordinates.

    c: all n instances, or some columns. norm: [r], logarithm of the softmax's denominator, from which any single weight
    of the row can be had again.
    """

    head: int
    index: Tensor
    weights: Tensor
    distance: Tensor
    mix: Mix | None
    norm: Tensor


@dataclass(frozen=True, eq=False)
class PairAttention:
    """Everything that one self-attention layer computed for one bag, from which any row can be had again.

    query, key [h, n, d]; value [h, n, o]; coords [n, 2 or 3]; *_embed [h, m, d or o], the m embeddings between which
    the distance chooses. Either theta and beta [h] (then m = 2 and phi interpolates) or `bin_of` (delta -> index of the
    embedding), or neither (plain attention).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    coords: Tensor
    scale: float
    distance_scale: float = 1.0
    theta: Tensor | None = None
    beta: Tensor | None = None
    phi: str = "sigmoid"
    bin_of: Callable[[Tensor], Tensor] | None = None
    key_embed: Tensor | None = None
    query_embed: Tensor | None = None
    value_embed: Tensor | None = None
    product_term: bool = False
    self_pair: bool = True
    section: Tensor | None = None
    bias: dict[str, Any] = field(default_factory=dict)  # bias, bias_scale [h], bias_table, bias_edges of das_attention
    radius: float | None = None  # in units of distance_scale
    rotary: bool = False  # query and key are turned by their positions

    @property
    def heads(self) -> int:
        return self.query.shape[0]

    @property
    def n(self) -> int:
        return self.query.shape[1]

    @cached_property
    def flat(self) -> tuple[bool, ...]:
        """For each head whether its embedding of a pair is the same at every distance of this bag."""
        reach = (self.coords.amax(0) - self.coords.amin(0)).double().norm()
        delta = torch.linspace(0, 1, STEPS, dtype=torch.float64, device=self.coords.device) * reach
        delta = delta / self.distance_scale
        if self.theta is not None and self.beta is not None:
            x = (delta - self.theta[:, None].double()) * self.beta[:, None].double()
            phi = PHI[self.phi](x)
            return tuple((phi.amax(1) - phi.amin(1) < FLAT).tolist())
        same = self.bin_of is None or int(self.bin_of(delta).unique().numel()) == 1
        return (same,) * self.heads

    @property
    def uses_distance(self) -> bool:
        """Whether anything in this layer depends on how far apart the instances of this bag are."""
        return bool(self.bias) or self.rotary or self.radius is not None or not all(self.flat)

    def mix(self, head: int, index: Tensor, distance: Tensor, columns: Tensor | None = None) -> Mix | None:
        """The coefficients of the rows `index` (at all columns, or at these); None for attention without distances."""
        related = self._related(index, distance, columns)
        delta = distance / self.distance_scale
        if self.theta is not None and self.beta is not None:
            return Mix(PHI[self.phi]((delta - self.theta[head]) * self.beta[head]), None, related)
        if self.bin_of is not None:
            return Mix(None, self.bin_of(delta), related)
        return None

    def _together(self, index: Tensor, columns: Tensor | None) -> Tensor | None:
        """[r, c]: pairs of one section, None where there is one section only."""
        if self.section is None:
            return None
        there = self.section if columns is None else self.section[columns]
        return (self.section[index, None] == there) & (there >= 0)

    def _related(self, index: Tensor, distance: Tensor, columns: Tensor | None) -> Tensor | None:
        """[r, c], 0 where a pair has no distance; None where all have one."""
        together = self._together(index, columns)
        related = None if together is None else together.to(distance.dtype)
        if not self.self_pair:
            related = torch.ones_like(distance) if related is None else related
            related[self._diagonal(index, columns)] = 0
        return related

    def _diagonal(self, index: Tensor, columns: Tensor | None) -> Tensor:
        return index[:, None] == (torch.arange(self.n, device=index.device) if columns is None else columns)

    def _distance_terms(self, head: int, index: Tensor, distance: Tensor, columns: Tensor | None) -> Tensor | None:
        """What bias and radius add to the logits [r, c]; None for nothing."""
        delta, added = distance / self.distance_scale, None
        if self.bias:
            scale, table = (
                None if (t := self.bias.get(name)) is None else t[head : head + 1]
                for name in ("bias_scale", "bias_table")
            )
            added = distance_bias(self.bias["bias"], delta[None], scale, table, self.bias.get("bias_edges"))[0]
            related = self._related(index, distance, columns)
            added = added if related is None else added * related
        if self.radius is not None:
            near, together = delta <= self.radius * (1 + ROOM), self._together(index, columns)
            if together is not None and self.section is not None:
                token = self.section < 0
                near = (near & together) | token[index, None] | (token if columns is None else token[columns])
            near |= self._diagonal(index, columns)
            added = torch.zeros_like(delta) if added is None else added
            added = added.masked_fill(~near, -torch.inf)
        return added

    def rows(self, head: int, index: Tensor) -> Rows:
        """The rows `index` [r] of one head: O(r n) time and memory."""
        e, distance, mix = self._compatibility(head, index, None)
        norm = e.logsumexp(-1)
        return Rows(head, index, e.sub_(norm[:, None]).exp_(), distance, mix, norm)

    def column(self, head: int, index: Tensor, norm: Tensor, j: int) -> Rows:
        """What the rows `index` [r], whose norms are known, give to instance j: O(r) time and memory."""
        e, distance, mix = self._compatibility(head, index, torch.tensor([j], device=index.device))
        return Rows(head, index, e.sub_(norm[:, None]).exp_(), distance, mix, norm)

    def _compatibility(self, head: int, index: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor, Mix | None]:
        """Scaled compatibilities e [r, c] before the softmax, distances [r, c] and the coefficients.

        Implements eqs. (das:compatibility:impl), (bijK) and (bijQV).
        """
        query, key = self.query[head, index], self.key[head] if columns is None else self.key[head, columns]
        squared = torch.zeros(len(index), len(key), dtype=self.coords.dtype, device=self.coords.device)
        for axis in self.coords.T:  # differences, axis by axis: no [r, n, 2] tensor and no loss of digits
            squared += (axis[index, None] - (axis if columns is None else axis[columns])).square_()
        distance = squared.sqrt_()
        mix = self.mix(head, index, distance, columns)
        e = query @ key.T
        if mix is not None:
            if self.key_embed is not None:
                e += mix.rows(query @ self.key_embed[head].T)
            if self.query_embed is not None:
                e += mix.columns(key @ self.query_embed[head].T)
            if self.product_term and self.key_embed is not None and self.query_embed is not None:
                e += mix.product(self.query_embed[head] @ self.key_embed[head].T)
        e = e.mul_(self.scale)
        added = self._distance_terms(head, index, distance, columns)
        return e if added is None else e.add_(added), distance, mix

    def blocks(self, head: int, index: Tensor) -> Iterator[Rows]:
        """The rows `index` in blocks of bounded size."""
        for part in index.split(max(1, CHUNK_ELEMENTS // self.n)):
            yield self.rows(head, part)

    def attention_received(self) -> Tensor:
        """The attention that each instance gets [n], mean over rows and heads (sum 1): O(n) memory, O(n^2) time.

        The sum of column j of the weights is the gradient of the summed outputs with respect to value j, so the
        operator's fast backward pass computes it.
        """
        if self.bin_of is None:
            ones = torch.zeros_like(self.value[..., :1]).requires_grad_()
            with torch.enable_grad():
                output = das_attention(
                    self.query.detach(), self.key.detach(), ones, self.coords, theta=self.theta, beta=self.beta,
                    key_embed=self.key_embed, query_embed=self.query_embed, phi=self.phi, scale=self.scale,
                    distance_scale=self.distance_scale, product_term=self.product_term, self_pair=self.self_pair,
                    section=self.section, radius=self.radius, **self.bias,
                )  # fmt: skip
                assert isinstance(output, Tensor)
                (total,) = torch.autograd.grad(output.sum(), ones)
            return total[..., 0].sum(0) / (self.n * self.heads)
        total = torch.zeros(self.n, dtype=self.query.dtype, device=self.query.device)
        every = torch.arange(self.n, device=self.query.device)
        for head in range(self.heads):
            for block in self.blocks(head, every):
                total += block.weights.sum(0)
        return total / (self.n * self.heads)

"""SmABMIL: attention pooling whose input, or scores, are smoothed over neighbours."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn

from dasmil.errors import InputError
from dasmil.models.bag_by_bag import BagByBag
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Length, Range, Size
from dasmil.nn import Linear
from dasmil.nn.neighbours import pairs_within

Where = Literal["early", "mid", "late"]
Mode = Literal["approx", "exact"]
Alpha = Annotated[float, Range(0, 1, below=True)]
MOST_EXACT = 5_000
"""Instances of a bag whose linear system (a matrix of all pairs) is solved."""


class _Spread(torch.autograd.Function):
    """A x for a symmetric sparse A, which is its own transpose in the backward pass."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a @ x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (a,) = ctx.saved_tensors
        return None, a @ gradients[0]


def neighbour_matrix(coords: Tensor, radius: float, section: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A = D^-1/2 W D^-1/2, W 1 for each pair at most ``radius`` apart, as a sparse matrix."""
    n = len(coords)
    rows, columns = pairs_within(coords, radius, section)
    degree = torch.bincount(rows, minlength=n).to(dtype)
    weights = (degree[rows] * degree[columns]).rsqrt()
    return torch.sparse_coo_tensor(torch.stack([rows, columns]), weights, (n, n), check_invariants=False).coalesce()


class SmAggregator(BagByBag):
    """f_i = w . tanh(W x_i + b), z = sum_i softmax_i(f) x_i [features], with Sm on x, on W x + b, or on f."""

    def __init__(
        self, features: int, hidden: int, where: str, mode: str, alpha: float | None, steps: int, radius: float,
        swapped: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.coef = nn.Parameter(torch.tensor(1.0)) if alpha is None else None
        self.alpha = alpha
        self.hidden, self.weight = Linear(features, hidden), Linear(hidden, 1, bias=False)
        self.where, self.mode, self.steps, self.radius, self.swapped = where, mode, steps, radius, swapped

    def smooth(self, a: Tensor, u: Tensor) -> Tensor:
        """Sm(u): approx G <- (1 - b) u + b A G; exact ((1 + c) I - c A)^-1 u, of which the first is the iteration."""
        coef = self.alpha / (1 - self.alpha) if self.alpha is not None else self.coef
        assert coef is not None
        if self.mode == "exact":
            n = len(u)
            if n > MOST_EXACT:
                raise InputError(
                    f"the bag has {n:,} instances, expected at most {MOST_EXACT:,} with mode='exact', which solves a "
                    "system of all pairs: use mode='approx'"
                )
            one = torch.eye(n, dtype=u.dtype, device=u.device)
            return torch.linalg.solve((1 + coef) * one - coef * a.to_dense(), u)
        share = 1 / (1 + coef) if self.swapped else coef / (1 + coef)
        g = u
        for _ in range(self.steps):
            spread = _Spread.apply(a, g)
            assert isinstance(spread, Tensor)
            g = (1 - share) * u + share * spread
        return g

    def attend(self, z: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """What is pooled [n, features] and its weights [n]."""
        x = self.smooth(a, z) if self.where == "early" else z
        h = self.hidden(x)
        f = self.weight((self.smooth(a, h) if self.where == "mid" else h).tanh())
        return x, (self.smooth(a, f) if self.where == "late" else f).squeeze(-1).softmax(0)

    def bag(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Aggregated:
        x, attention = self.attend(z, neighbour_matrix(coords, self.radius, section, z.dtype))
        return Aggregated(attention @ x, instance_scores=attention)

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each instance of one bag adds to the embedding [n, features]; Sm is linear and symmetric."""
        a = neighbour_matrix(coords, self.radius, section, z.dtype)
        _, attention = self.attend(z, a)
        own = attention.unsqueeze(-1)
        return (self.smooth(a, own) if self.where == "early" else own) * z


class SmABMIL(MILModel):
    """AB-MIL with the smooth operator: neighbours within ``radius`` (None: distance_scale) come to have like attention.

    In training the radius, unless given, is the distance to the eighth neighbour: on a grid of tiles the diagonal.
    alpha: weight of the neighbours, in [0, 1); None: learned, alpha = coef / (1 + coef), from 1/2. where: "early" on
    the instances, "mid" on the hidden layer, "late" on the scores. mode: "approx" in ``steps`` rounds, or "exact", a
    solve with a matrix of all pairs (at most 5,000 instances). swapped: as in the authors' library, where "approx"
    takes 1 - alpha for alpha. Memory grows with n and the pairs within the radius. Spectral normalisation is left out.
    """

    name = "sm-abmil"
    paper = "Castro-Macias et al. 2024, Sm: enhanced localization in multiple instance learning"
    position = "relative"
    scale_neighbour = 8
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {"radius": 100.0}}

    def __init__(
        self,
        *,
        hidden: Size = 128,
        where: Where = "early",
        mode: Mode = "approx",
        alpha: Alpha | None = None,
        steps: Count = 10,
        radius: Length | None = None,
        swapped: bool = False,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        reach = radius or self.distance_scale
        self.aggregator = SmAggregator(self.encoded, hidden, where, mode, alpha, steps, reach, swapped)
        self.classifier = self.make_classifier(self.encoded)

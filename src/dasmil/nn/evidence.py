"""Layers whose output can only rise when an instance, or a pair of instances, is added to a bag."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.nn.attention import DistanceAwareAttention
from dasmil.nn.begin import KNOWN_STEEPNESS, QUIET
from dasmil.nn.linear import Linear, linear, per_run
from dasmil.ops.das_attention import das_attention

THRESHOLD = 5.0
"""The log-odds that untrained evidence must add up to: about 150 instances of score 0 make an even chance."""
WEIGHT = 4.0
"""What a concept that is surely there adds to the logit before training."""
SURE = 4.0
"""Log-odds of a start that means something: of a pair that it looks for, and against all others together."""


class NonNegativeLinear(Linear):
    """y = x |W|^T + b, for one run or for stacked runs."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        nn.init.constant_(self.weight, WEIGHT)

    @property
    def used_weight(self) -> Tensor:
        return self.weight.abs()

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.used_weight, self.bias)


class PairEvidence(DistanceAwareAttention):
    """x [..., n, in] and coords [..., n, 2 or 3] -> [..., n, heads] in (0, 1): sigmoid(log sum_j exp(e_ij) - t).

    e_ij is the compatibility of distance-aware attention, t one threshold a head. A further pair makes the sum larger,
    so no instance can lower it. This is the attention that instance i does not leave to a token with the logit t, so
    the operator of distance-aware attention computes it: values are 1, that of the token is 0.
    """

    def __init__(self, in_features: int, *, heads: int, embeddings: str, **options: Any) -> None:
        super().__init__(in_features, heads, heads=heads, embeddings=embeddings.replace("v", ""), **options)
        del self.value
        self.threshold = nn.Parameter(torch.full((heads,), THRESHOLD))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys [..., heads, n, hidden], values [..., heads, n, 1], which are all 1."""
        query, key = (y.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for y in (self.query(x), self.key(x)))
        return query, key, torch.ones_like(query[..., :1])

    def forward(self, x: Tensor, coords: Tensor, mask: Tensor | None = None, section: Tensor | None = None) -> Tensor:
        batch, n = x.shape[:-2], x.shape[-2]
        query, key, value = self.project(x)
        threshold = per_run(self.threshold, 1, batch)[..., None, None].expand(*query.shape[:-2], 1, 1)
        key = torch.cat([F.pad(key, (0, 1)), F.pad(threshold, (key.shape[-1], 0))], dim=-2)  # the token comes last
        query = F.pad(torch.cat([query, torch.full_like(value, 1 / self.scale)], dim=-1), (0, 0, 0, 1))
        if section is None:
            section = torch.zeros(*batch, n, dtype=torch.int64, device=x.device)

        def mine(name: str, own_ndim: int, wider: int = 0) -> Tensor | None:
            parameter = getattr(self, name)
            return None if parameter is None else F.pad(per_run(parameter, own_ndim, batch), (0, wider))

        z = das_attention(
            query, key, F.pad(value, (0, 0, 0, 1)), torch.cat([coords, coords[..., :1, :]], dim=-2),
            theta=mine("theta", 1), beta=mine("beta", 1), key_embed=mine("key_embed", 3, 1),
            query_embed=mine("query_embed", 3, 1), phi=self.phi, scale=self.scale,
            distance_scale=self.distance_scale, product_term=self.product_term, self_pair=self.self_pair,
            mask=None if mask is None else F.pad(mask, (0, 1), value=True), section=F.pad(section, (0, 1), value=-1),
            radius=self.relative_radius, **self.dropout_now(), **self.bias_terms(batch),
        )  # fmt: skip
        assert isinstance(z, Tensor)
        return z[..., :n, 0].transpose(-1, -2)

    @torch.no_grad()
    def begin_near(self, first: Tensor, second: Tensor, theta: float, instances: float) -> bool:
        """Start so that the first head finds instances like ``first`` nearer than theta to one like ``second``.

        With s_a(x) = x.first / |first|^2, which is 1 for instances like first and about 0 for others, and s_b likewise,
        e_ij = SURE s_a(i) s_b(j) + H (s_a(i) + s_b(j)), where H is 0 for far pairs: below 0 it would turn instances
        that are the opposite of first and second into evidence. For near pairs H is half of the threshold, so that one
        whose other end is any other instance stays below it, even if there are as many as instances.
        False where embeddings or a learned sigmoid are missing.
        """
        if self.phi != "sigmoid" or self.key_embed is None or self.query_embed is None:
            return False
        assert self.theta is not None
        assert self.beta is not None
        a, b, gain = first / first.square().sum(), second / second.square().sum(), math.sqrt(SURE / self.scale)
        self.threshold[0] = 2 * (SURE + math.log(instances))
        for weight, like in ((self.query.weight, a), (self.key.weight, b)):
            weight.mul_(QUIET)
            weight[0] = gain * like
        for embed in (self.key_embed, self.query_embed):
            assert isinstance(embed, Tensor)
            embed.mul_(QUIET)
            embed[0, :, 0] = self.threshold[0] / 2 / (self.scale * gain) * torch.tensor([0.0, 1.0])
        self.theta[0], self.beta[0] = theta, KNOWN_STEEPNESS / theta
        return True

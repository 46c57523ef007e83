"""Self-attention over the instances of a bag, with or without distances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dasmil.errors import InputError, unknown_name
from dasmil.nn.draws import attention_dropout
from dasmil.nn.linear import Linear, per_run
from dasmil.ops import rotate
from dasmil.ops.das_attention import BIASES, PHI, das_attention

# How wide, in units of 1 / |beta|, the change of phi is: from 10 % to 90 %, or the full width at half maximum.
WIDTH = {
    "sigmoid": 2 * math.log(9),
    "identity": 0.8,
    "exponential": 2 * math.log(2),
    "gaussian": math.sqrt(8 * math.log(2)),
}


BIAS_BINS = 16
"""Intervals of the distance, from 0 to distance_scale, of a bias by table."""
STEEPNESS = 5.0  # beta x theta, as the paper's 10 and 0.5
BLIND = 20.0
"""beta x -theta from which on a sigmoid is 1 at every distance, in float32 and in its gradients, too."""


class AttentionHeads(nn.Module):
    """The projections W^Q, W^K, W^V [d_x, heads * d] without bias that all attention layers share."""

    def __init__(self, in_features: int, out_features: int, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        if min(in_features, out_features, hidden, heads) < 1:
            raise InputError(
                f"features {in_features} -> {out_features}, hidden {hidden}, heads {heads}: all must be at least 1"
            )
        if out_features % heads:
            raise InputError(
                f"out_features is {out_features}, which {heads} heads cannot share evenly (their outputs are joined): "
                f"use a multiple of {heads}"
            )
        if not 0 <= dropout < 1:
            raise InputError(f"dropout is {dropout}, expected a probability in [0, 1)")
        self.in_features, self.out_features, self.hidden, self.heads = in_features, out_features, hidden, heads
        self.dropout = dropout
        # The paper divides by sqrt(d_z) where d_x = d_z; the published program by the root of the input size.
        self.scale = 1 / math.sqrt(in_features)
        self.query = Linear(in_features, heads * hidden, bias=False)
        self.key = Linear(in_features, heads * hidden, bias=False)
        self.value = Linear(in_features, out_features, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys [..., heads, n, hidden] and values [..., heads, n, out / heads] of x [..., n, f]."""

        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

        return split(self.query(x)), split(self.key(x)), split(self.value(x))

    def dropout_now(self) -> dict[str, Any]:
        """What das_attention takes about dropout, in training and outside of it."""
        return attention_dropout(self.dropout, self.training)


def join(z: Tensor) -> Tensor:
    """[..., heads, n, o] -> [..., n, heads * o]."""
    return z.transpose(-2, -3).flatten(-2)


class DistanceAwareAttention(AttentionHeads):
    """DASAtt: x [..., n, in] and coords [..., n, 2 or 3] -> [..., n, out].

    Implements eqs. (das:output), (das:compatibility:impl) and (bijK), (bijQV): u and v of each embedding are row 0 and
    row 1 of key_embed, query_embed [heads, 2, hidden] and value_embed [heads, 2, out / heads]; theta, beta [heads].
    ``embeddings`` names those in use; with "" this is plain self-attention, eqs. (self_att), (self_att_compatibility).
    bias: a term of the logits that depends on the distance alone, one of dasmil.ops' kinds; bias_init: its slope or
    length in units of distance_scale (a length is learned by its logarithm), for "bins" the height of all bins, of
    which there are BIAS_BINS up to distance_scale. radius: in the unit of the coordinates, see das_attention.
    wavelengths: the shortest and the longest of rotary positions, in the unit of the coordinates.
    What is not trained is kept as a buffer, so it is saved and not counted as trainable.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        hidden: int,
        heads: int = 1,
        embeddings: str = "kqv",
        product_term: bool = False,
        train_embeddings: bool = True,
        train_phi: bool = True,
        phi: str = "sigmoid",
        theta_init: float | Sequence[float] = 0.5,
        beta_init: float | Sequence[float] = 10.0,
        self_pair: bool = True,
        dropout: float = 0.1,
        distance_scale: float = 1.0,
        bias: str | None = None,
        bias_init: float | Sequence[float] = 1.0,
        train_bias: bool = True,
        radius: float | None = None,
        wavelengths: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(in_features, out_features, hidden, heads, dropout)
        if phi not in PHI:
            raise unknown_name("phi", phi, PHI)
        check_embeddings(embeddings)
        if product_term and not {"k", "q"} <= set(embeddings):
            raise InputError(
                f"product_term adds bQ.bK and needs both embeddings, but embeddings is {embeddings!r}: "
                "use 'kq' or 'kqv'"
            )
        self.phi, self.product_term, self.self_pair, self.distance_scale = phi, product_term, self_pair, distance_scale
        for letter, name, size in (("k", "key", hidden), ("q", "query", hidden), ("v", "value", out_features // heads)):
            tensor = torch.randn(heads, 2, size) if letter in embeddings else None
            register(self, f"{name}_embed", tensor, trainable=train_embeddings)
        self.theta: Tensor | None
        self.beta: Tensor | None
        register(self, "theta", per_head("theta_init", theta_init, heads) if embeddings else None, trainable=train_phi)
        register(self, "beta", per_head("beta_init", beta_init, heads) if embeddings else None, trainable=train_phi)
        self.bias, self.radius, self.wavelengths = bias, radius, wavelengths
        if wavelengths is not None and not wavelengths[0] <= wavelengths[1]:
            shortest, longest = wavelengths
            raise InputError(f"shortest is {shortest:g} and longest is {longest:g}, expected the longer one second")
        if wavelengths is not None and hidden % 4:
            raise InputError(
                f"hidden is {hidden}, but rotary positions in the plane turn numbers in fours: use a multiple of 4"
            )
        self._make_bias(bias_init, train_bias)

    def _make_bias(self, init: float | Sequence[float], trainable: bool) -> None:
        self.bias_scale: Tensor
        self.bias_log_length: Tensor
        self.bias_table: Tensor
        if self.bias is None:
            return
        if self.bias not in BIASES:
            raise unknown_name("bias", self.bias, BIASES)
        start = per_head("bias_init", init, self.heads)
        if self.bias == "linear":
            register(self, "bias_scale", start, trainable=trainable)
        elif self.bias == "bins":
            register(self, "bias_table", start[:, None].repeat(1, BIAS_BINS), trainable=trainable)
        else:
            if min(init if isinstance(init, Sequence) else [init]) <= 0:
                raise InputError(f"bias_init is {init}, but bias {self.bias!r} has lengths: use numbers above 0")
            logs = [math.log(length) for length in init] if isinstance(init, Sequence) else math.log(init)
            register(self, "bias_log_length", per_head("bias_init", logs, self.heads), trainable=trainable)

    def bias_terms(self, batch: torch.Size | None = None) -> dict[str, Any]:
        """The arguments bias, bias_scale, bias_table and bias_edges of das_attention."""
        batch = torch.Size() if batch is None else batch
        if self.bias is None:
            return {}
        if self.bias == "bins":
            table = per_run(self.bias_table, 2, batch)
            return {"bias": "bins", "bias_table": table, "bias_edges": torch.arange(1, BIAS_BINS).to(table) / BIAS_BINS}
        scale = self.bias_scale if self.bias == "linear" else self.bias_log_length.exp()
        return {"bias": self.bias, "bias_scale": per_run(scale, 1, batch)}

    @property
    def relative_radius(self) -> float | None:
        """The radius in units of distance_scale, as das_attention takes it."""
        return None if self.radius is None else self.radius / self.distance_scale

    def turned(self, query: Tensor, key: Tensor, coords: Tensor, section: Tensor | None) -> tuple[Tensor, Tensor]:
        """Queries and keys with their rotary positions, if there are any."""
        if self.wavelengths is None:
            return query, key
        shortest, longest = self.wavelengths
        turned = [rotate(x, coords, shortest=shortest, longest=longest, section=section) for x in (query, key)]
        return turned[0], turned[1]

    def forward(self, x: Tensor, coords: Tensor, mask: Tensor | None = None, section: Tensor | None = None) -> Tensor:
        query, key, value = self.project(x)
        query, key = self.turned(query, key, coords, section)
        batch = x.shape[:-2]

        def mine(name: str, own_ndim: int) -> Tensor | None:
            parameter = getattr(self, name)
            return None if parameter is None else per_run(parameter, own_ndim, batch)

        z = das_attention(
            query, key, value, coords, theta=mine("theta", 1), beta=mine("beta", 1), key_embed=mine("key_embed", 3),
            query_embed=mine("query_embed", 3), value_embed=mine("value_embed", 3), phi=self.phi, scale=self.scale,
            distance_scale=self.distance_scale, product_term=self.product_term, self_pair=self.self_pair,
            mask=mask, section=section, radius=self.relative_radius, **self.dropout_now(), **self.bias_terms(batch),
        )  # fmt: skip
        assert isinstance(z, Tensor)
        return join(z)

    def learned_biases(self) -> list[dict[str, Any]]:
        """Per head: the kind of bias and its slope (per unit of the coordinates), length (in that unit) or table."""
        if self.bias is None:
            return []
        if self.bias == "bins":
            return [{"head": h, "bias": "bins", "table": row.tolist()} for h, row in enumerate(self.bias_table)]
        scale = self.bias_terms()["bias_scale"].tolist()
        if self.bias == "linear":
            return [{"head": h, "bias": "linear", "slope": s / self.distance_scale} for h, s in enumerate(scale)]
        return [{"head": h, "bias": self.bias, "length": s * self.distance_scale} for h, s in enumerate(scale)]

    @property
    def outputs_per_head(self) -> int:
        return self.value.weight.shape[-2] // self.heads

    def learned_distances(self) -> list[dict[str, float]]:
        """Per head: theta and beta, and what they mean as a length: where phi changes, and over which width.

        Not of a head whose sigmoid is 1 at every distance.
        """
        if self.theta is None or self.beta is None:
            return []
        rows = []
        for head, (theta, beta) in enumerate(zip(self.theta.tolist(), self.beta.tolist())):
            if self.phi == "sigmoid" and -theta * beta >= BLIND and beta > 0:
                continue
            width = WIDTH[self.phi] * self.distance_scale / abs(beta) if beta else math.inf
            rows.append(
                {"head": head, "theta": theta, "beta": beta, "midpoint": theta * self.distance_scale, "width": width}
            )
        return rows


def check_embeddings(embeddings: str) -> None:
    if not set(embeddings) <= set("kqv") or len(set(embeddings)) != len(embeddings):
        raise InputError(f"embeddings is {embeddings!r}, expected a subset of 'kqv', for example 'kq', or '' for none")


def per_head(name: str, value: float | Sequence[float], heads: int) -> Tensor:
    """One value a head [heads], from a number for all or from a list with one number each."""
    values = [float(v) for v in value] if isinstance(value, Sequence) else [float(value)] * heads
    if len(values) != heads or not all(map(math.isfinite, values)):
        raise InputError(
            f"{name} is {value}, expected a number or a list with one finite number for each of {heads} heads"
        )
    return torch.tensor(values)


def register(module: nn.Module, name: str, tensor: Tensor | None, *, trainable: bool = True) -> None:
    """Keep a tensor under that name, as a parameter if it is to be trained, else as a buffer (None: unused)."""
    if tensor is not None and trainable:
        module.register_parameter(name, nn.Parameter(tensor))
    else:
        module.register_buffer(name, tensor)

"""Self-attention over the instances of a bag, with or without distances."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dasmil.errors import InputError, unknown_name
from dasmil.nn.linear import Linear, per_run
from dasmil.ops.das_attention import PHI, das_attention

# How wide, in units of 1 / |beta|, the change of phi is: from 10 % to 90 %, or the full width at half maximum.
WIDTH = {
    "sigmoid": 2 * math.log(9),
    "identity": 0.8,
    "exponential": 2 * math.log(2),
    "gaussian": math.sqrt(8 * math.log(2)),
}


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

    @property
    def dropout_now(self) -> float:
        return self.dropout if self.training else 0.0


def join(z: Tensor) -> Tensor:
    """[..., heads, n, o] -> [..., n, heads * o]."""
    return z.transpose(-2, -3).flatten(-2)


class DistanceAwareAttention(AttentionHeads):
    """DASAtt: x [..., n, in] and coords [..., n, 2 or 3] -> [..., n, out].

    Implements eqs. (das:output), (das:compatibility:impl) and (bijK), (bijQV): u and v of each embedding are row 0 and
    row 1 of key_embed, query_embed [heads, 2, hidden] and value_embed [heads, 2, out / heads]; theta, beta [heads].
    ``embeddings`` names those in use; with "" this is plain self-attention, eqs. (self_att), (self_att_compatibility).
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

    def forward(self, x: Tensor, coords: Tensor, mask: Tensor | None = None, section: Tensor | None = None) -> Tensor:
        query, key, value = self.project(x)
        batch = x.shape[:-2]

        def mine(name: str, own_ndim: int) -> Tensor | None:
            parameter = getattr(self, name)
            return None if parameter is None else per_run(parameter, own_ndim, batch)

        z = das_attention(
            query, key, value, coords, theta=mine("theta", 1), beta=mine("beta", 1), key_embed=mine("key_embed", 3),
            query_embed=mine("query_embed", 3), value_embed=mine("value_embed", 3), phi=self.phi, scale=self.scale,
            distance_scale=self.distance_scale, product_term=self.product_term, self_pair=self.self_pair,
            mask=mask, section=section, dropout_p=self.dropout_now,
        )  # fmt: skip
        assert isinstance(z, Tensor)
        return join(z)

    def learned_distances(self) -> list[dict[str, float]]:
        """Per head: theta and beta, and what they mean as a length: where phi changes, and over which width."""
        if self.theta is None or self.beta is None:
            return []
        rows = []
        for head, (theta, beta) in enumerate(zip(self.theta.tolist(), self.beta.tolist())):
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

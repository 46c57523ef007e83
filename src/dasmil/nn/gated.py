"""Gated attention over instances, with one branch or several; runs may be stacked."""

from __future__ import annotations

from torch import Tensor, nn

from dasmil.nn.draws import dropout
from dasmil.nn.linear import Linear


class GatedBranches(nn.Module):
    """h_i = ReLU(W z_i + b), s_ik = row k of W_w (tanh(V h_i + v) * sigmoid(U h_i + u)) + w_k.

    bias: whether the first layer has one; dropout: after the first layer; inside: on tanh and sigmoid.
    """

    def __init__(
        self, in_features: int, features: int, hidden: int, branches: int = 1, *,
        bias: bool = True, dropout: float = 0.0, inside: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.enter = Linear(in_features, features, bias=bias)
        self.tanh, self.gate = Linear(features, hidden), Linear(features, hidden)
        self.weight = Linear(hidden, branches)
        self.dropout, self.inside = dropout, inside

    def attend(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """h [..., n, features] and scores [..., branches, n] of z [..., n, f]; scores of padding are -inf."""
        h = dropout(self.enter(z).relu(), self.dropout, self.training)
        a = dropout(self.tanh(h).tanh(), self.inside, self.training)
        g = dropout(self.gate(h).sigmoid(), self.inside, self.training)
        scores = self.weight(a * g).mT
        return h, scores if mask is None else scores.masked_fill(~mask.unsqueeze(-2), float("-inf"))

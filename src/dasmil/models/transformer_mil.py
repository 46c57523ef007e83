"""The plain transformer of MIL benchmarks: a class token among the instances, no positions."""

from __future__ import annotations

from typing import Annotated, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.errors import InputError
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Probability, Range, Size
from dasmil.nn import Linear
from dasmil.nn.attention import join
from dasmil.nn.draws import attention_dropout, dropout
from dasmil.nn.linear import per_run
from dasmil.nn.multihead import MultiHead
from dasmil.nn.nystrom import LayerNorm
from dasmil.nn.recompute import again_in_backward
from dasmil.ops import das_attention

Hidden = Annotated[int, Range(0, 65_536)]


class Block(nn.Module):
    """x + MHA(LN(x)), and with an MLP x + ReLU(W_2 ReLU(W_1 LN(x))), a ReLU at its end."""

    def __init__(self, features: int, heads: int, mlp: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.attention = LayerNorm(features), MultiHead(features, heads)
        self.up, self.down = (Linear(features, mlp), Linear(mlp, features)) if mlp else (None, None)
        self.norm2 = LayerNorm(features) if mlp else None
        self.dropout = dropout

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y, drop = self.norm(x), attention_dropout(self.dropout, self.training)
        q, k, v = self.attention.project(y, y, y)
        nowhere = x.new_zeros(*x.shape[:-1], 2)
        z = das_attention(q, k, v, nowhere, scale=q.shape[-1] ** -0.5, mask=mask, **drop)
        assert isinstance(z, Tensor)
        x = x + self.attention.out(join(z))
        if self.up is None or self.down is None or self.norm2 is None:
            return x
        return x + self.down(dropout(self.up(self.norm2(x)).relu(), self.dropout, self.training)).relu()


class TokenAggregator(nn.Module):
    """e_i = ReLU(W z_i + b), a class token in front, the blocks; the token is the bag [..., features]."""

    def __init__(self, in_features: int, features: int, heads: int, layers: int, mlp: int, dropout: float) -> None:
        super().__init__()
        self.enter = Linear(in_features, features)
        self.token = nn.Parameter(torch.randn(features))
        self.blocks = nn.ModuleList(Block(features, heads, mlp, dropout) for _ in range(layers))
        self.norm = LayerNorm(features)

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        batch = z.shape[:-2]
        token = per_run(self.token, 1, batch).expand(*batch, -1).unsqueeze(-2)
        x = torch.cat([token, self.enter(z).relu()], -2)
        if mask is not None:
            mask = F.pad(mask, (1, 0), value=True)
        for block in self.blocks:
            x = again_in_backward(block, x, mask)
        return Aggregated(self.norm(x[..., :1, :]).squeeze(-2))


class TransformerMIL(MILModel):
    """A class token and the instances through pre-norm self-attention, two layers of eight heads; no positions.

    The transformer of MIL-Lab (Shao et al. 2025): without MLPs by default, with ``mlp`` = 2048 in its shipped
    configuration. Attention in memory that grows with n; its time with n^2.
    """

    name = "transformer-mil"
    paper = "Shao et al. 2025, Do multiple instance learning models transfer? (MIL-Lab)"
    idle_parameters = ("aggregator.blocks.*.attention.key.bias",)

    def __init__(
        self,
        *,
        features: Size = 512,
        heads: Count = 8,
        layers: Count = 2,
        mlp: Hidden = 0,
        dropout: Probability = 0.25,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        if features % heads:
            raise InputError(f"features is {features}, which {heads} heads cannot share evenly: use a multiple")
        self.aggregator = TokenAggregator(self.encoded, features, heads, layers, mlp, dropout)
        self.classifier = self.make_classifier(features)
        for part in (self.aggregator, self.classifier):
            for name, module in part.named_modules():
                inside = name.endswith(("attention.query", "attention.key", "attention.value"))
                if isinstance(module, Linear) and not inside:
                    nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
                    nn.init.zeros_(module.bias)

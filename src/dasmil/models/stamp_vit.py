"""STAMP's vision transformer over tiles, with or without a bias that falls with the distance."""

from __future__ import annotations

from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.errors import InputError
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Probability, Size
from dasmil.nn import Linear
from dasmil.nn.attention import join
from dasmil.nn.distance_sum import distance_sum
from dasmil.nn.draws import attention_dropout, dropout
from dasmil.nn.linear import per_run
from dasmil.nn.multihead import MultiHead
from dasmil.nn.nystrom import LayerNorm
from dasmil.nn.recompute import again_in_backward
from dasmil.ops import das_attention

Alibi = Literal["inside", "after", "none"]


class Block(nn.Module):
    """x + attention(LN(x)), then x + W_2 GELU(W_1 LN(x)); token 0 is the class token.

    alibi: "inside" softmax_j(q.k / sqrt(d) - s_h delta_ij), "after" softmax_j(q.k / sqrt(d)) - s_h delta_ij; delta in
    units of distance_scale. token_seen: whether instances attend to the class token.
    """

    def __init__(
        self, features: int, heads: int, mlp: int, dropout: float, mlp_dropout: float, alibi: str, token_seen: bool,
        distance_scale: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm, self.attention, self.norm2 = LayerNorm(features), MultiHead(features, heads), LayerNorm(features)
        if alibi != "none":
            for layer in (self.attention.query, self.attention.key, self.attention.value):
                layer.reset_parameters()
        self.slopes = nn.Parameter(torch.rand(heads)) if alibi != "none" else None
        self.up, self.down = Linear(features, mlp), Linear(mlp, features)
        self.dropout, self.mlp_dropout, self.alibi, self.token_seen = dropout, mlp_dropout, alibi, token_seen
        self.distance_scale = distance_scale

    def forward(self, x: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = self.attention.project(y, y, y)
        z = self._attend(q, k, v, coords, mask, section)
        if self.alibi == "after":
            z = z - self._far(v, coords, mask, section)
        x = x + dropout(self.attention.out(join(z)), self.dropout, self.training)
        inner = dropout(F.gelu(self.up(self.norm2(x))), self.mlp_dropout, self.training)
        return x + dropout(self.down(inner), self.mlp_dropout, self.training)

    def _slopes(self, batch: torch.Size) -> Tensor:
        assert self.slopes is not None
        return per_run(self.slopes, 1, batch)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor) -> Tensor:
        more: dict[str, Any] = {"scale": q.shape[-1] ** -0.5, **attention_dropout(self.dropout, self.training)}
        if self.alibi == "inside":
            more |= {
                "bias": "linear", "bias_scale": self._slopes(q.shape[:-3]), "distance_scale": self.distance_scale,
            }  # fmt: skip
        if self.token_seen:
            return _tensor(das_attention(q, k, v, coords, mask=mask, section=section, **more))
        scores = q[..., :1, :] @ k.mT * more["scale"]  # the token has no place: no bias
        if mask is not None:
            scores = scores.masked_fill(~mask[..., None, None, :], float("-inf"))
        token = scores.softmax(-1) @ v
        if self.alibi == "after":  # its weight is taken away from what instances see, the others stay as they are
            hidden = torch.cat([torch.zeros_like(v[..., :1, :]), v[..., 1:, :]], -2)
            rest = _tensor(das_attention(q, k, hidden, coords, mask=mask, section=section, **more))[..., 1:, :]
        else:
            own = None if mask is None else mask[..., 1:]
            q, k, v = q[..., 1:, :], k[..., 1:, :], v[..., 1:, :]
            rest = _tensor(das_attention(q, k, v, coords[..., 1:, :], mask=own, section=section[..., 1:], **more))
        return torch.cat([token, rest], -2)

    def _far(self, v: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor) -> Tensor:
        """sum_j s_h delta_ij v_j; the class token lies at (0, 0), or nowhere where instances do not see it."""
        if mask is not None:
            v = v * mask[..., None, :, None]
        if self.token_seen:
            section = torch.where(section < 0, section.amax(-1, keepdim=True), section)
            far = distance_sum(v, coords, None if bool((section == section[..., :1]).all()) else section)
        else:
            far = F.pad(distance_sum(v[..., 1:, :], coords[..., 1:, :], section[..., 1:]), (0, 0, 1, 0))
        return far * (self._slopes(v.shape[:-3]) / self.distance_scale)[..., None, None]


def _tensor(found: Any) -> Tensor:
    assert isinstance(found, Tensor)
    return found


class ViTAggregator(nn.Module):
    """x_i = GELU(W z_i + b), a class token in front, the blocks, LayerNorm; the token is the bag [..., features]."""

    def __init__(self, in_features: int, features: int, blocks: list[Block]) -> None:
        super().__init__()
        self.enter = Linear(in_features, features)
        self.token = nn.Parameter(torch.randn(features))
        self.blocks = nn.ModuleList(blocks)
        self.norm = LayerNorm(features)

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        batch, n = z.shape[:-2], z.shape[-2]
        token = per_run(self.token, 1, batch).expand(*batch, -1).unsqueeze(-2)
        x = torch.cat([token, F.gelu(self.enter(z))], -2)
        coords = F.pad(coords, (0, 0, 1, 0))
        if mask is not None:
            mask = F.pad(mask, (1, 0), value=True)
        if section is None:
            section = torch.zeros(n, dtype=torch.int64, device=z.device)
        section = F.pad(section, (1, 0), value=-1)
        for block in self.blocks:
            x = again_in_backward(block, x, coords, mask, section)
        return Aggregated(self.norm(x[..., :1, :]).squeeze(-2))


class StampViT(MILModel):
    """STAMP's transformer: class token, two pre-norm layers of eight heads and an MLP, a learned slope of the distance.

    alibi: "inside" (default) subtracts s_h delta_ij in the softmax, as ALiBi means it, the class token without a place;
    "after" subtracts it from the weights behind the softmax, as the program does, the token at (0, 0); "none". delta is
    in units of distance_scale, where the program has a running mean of distances. token_seen=False: instances do not
    attend to the class token (the program's result when a mask is given). mlp_dropout: 0.5 in the program, always.
    """

    name = "stamp-vit"
    paper = "El Nahhas et al. 2025, From whole-slide image to biomarker prediction (STAMP)"
    position = "relative"
    idle_parameters = (
        "aggregator.blocks.*.attention.key.bias",
        "aggregator.blocks.1.slopes",  # of the last layer only the token is read, which has no place
    )

    def __init__(
        self,
        *,
        features: Size = 512,
        heads: Count = 8,
        layers: Count = 2,
        mlp: Size = 512,
        dropout: Probability = 0.0,
        mlp_dropout: Probability = 0.5,
        alibi: Alibi = "inside",
        token_seen: bool = True,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        if features % heads:
            raise InputError(f"features is {features}, which {heads} heads cannot share evenly: use a multiple")
        blocks = [
            Block(features, heads, mlp, dropout, mlp_dropout, alibi, token_seen, self.distance_scale)
            for _ in range(layers)
        ]
        self.aggregator = ViTAggregator(self.encoded, features, blocks)
        self.classifier = self.make_classifier(features)

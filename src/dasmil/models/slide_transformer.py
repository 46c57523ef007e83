"""A transformer over the tiles of a slide, in the shape of today's slide encoders."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.errors import InputError
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Length, Probability, Size
from dasmil.nn import Linear
from dasmil.nn.attention import join, register
from dasmil.nn.draws import attention_dropout, dropout
from dasmil.nn.linear import per_run
from dasmil.nn.nystrom import LayerNorm
from dasmil.nn.recompute import again_in_backward
from dasmil.ops import das_attention
from dasmil.ops.alibi import published_slopes

PIECE = 8192
"""Instances that go through an MLP at once where no gradient is wanted."""


class Block(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x)), the attention with a bias that falls with the distance."""

    def __init__(
        self, width: int, heads: int, mlp: int, dropout: float, slopes: list[float], train_slopes: bool
    ) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
        self.qkv, self.out = Linear(width, 3 * width), Linear(width, width)
        self.up, self.down = Linear(width, mlp * width), Linear(mlp * width, width)
        self.slopes: Tensor
        register(self, "slopes", torch.tensor(slopes), trainable=train_slopes)

    def learned_biases(self, distance_scale: float) -> list[dict[str, Any]]:
        """Per head: the slope per unit of the coordinates."""
        slopes = enumerate(self.slopes.tolist())
        return [{"head": head, "bias": "linear", "slope": slope / distance_scale} for head, slope in slopes]

    def forward(
        self,
        x: Tensor,
        coords: Tensor,
        mask: Tensor | None,
        section: Tensor,
        distance_scale: float,
        radius: float | None,
    ) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        z = das_attention(
            q, k, v, coords, bias="linear", bias_scale=per_run(self.slopes, 1, x.shape[:-2]), scale=q.shape[-1] ** -0.5,
            distance_scale=distance_scale, radius=radius, mask=mask, section=section,
            **attention_dropout(self.dropout, self.training),
        )  # fmt: skip
        assert isinstance(z, Tensor)
        x = x + dropout(self.out(join(z)), self.dropout, self.training)
        if torch.is_grad_enabled():
            return x + self._mlp(x)
        for part in x.split(PIECE, -2):  # what lies between up and down is four times as wide as all the rest
            part += self._mlp(part)
        return x

    def _mlp(self, x: Tensor) -> Tensor:
        return dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout, self.training)


class TransformerAggregator(nn.Module):
    """Tiles and a class token through the blocks; the token is the slide [..., f]."""

    def __init__(
        self, in_features: int, width: int, blocks: list[Block], distance_scale: float, radius: float | None,
        checkpointing: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.enter = Linear(in_features, width)
        self.token = nn.Parameter(torch.empty(width).normal_(std=0.02))
        self.blocks = nn.ModuleList(blocks)
        self.norm = LayerNorm(width)
        self.distance_scale, self.radius, self.checkpointing = distance_scale, radius, checkpointing

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        batch, n = z.shape[:-2], z.shape[-2]
        token = per_run(self.token, 1, batch).expand(*batch, -1).unsqueeze(-2)
        x = torch.cat([token, self.enter(z)], -2)
        coords = F.pad(coords, (0, 0, 1, 0))
        if mask is not None:
            mask = F.pad(mask, (1, 0), value=True)
        if section is None:
            section = torch.zeros(n, dtype=torch.int64, device=z.device)
        section = F.pad(section, (1, 0), value=-1)
        radius = None if self.radius is None else self.radius / self.distance_scale
        for block in self.blocks:
            arguments = (x, coords, mask, section, self.distance_scale, radius)
            x = again_in_backward(block, *arguments) if self.checkpointing else block(*arguments)
        return Aggregated(self.norm(x[..., :1, :]).squeeze(-2))


class SlideTransformer(MILModel):
    """A class token and the tiles, layers of pre-norm attention with a linear distance bias and MLPs, then the token.

    e_ij = q_i.k_j / sqrt(d) - m_h delta_ij with the published slopes m_h for distances in units of ``step`` (None:
    distance_scale), learned with train_slopes; the class token has no place: no bias, never cut by the radius.
    The shape of TITAN and its like: layers 6, heads 12, head_features 64 (width 768), MLP four times as wide, GELU.
    checkpointing: the backward pass computes each block again, so memory grows with one block and not with all.
    Memory grows with n, not n^2. radius: in the unit of the coordinates, see sa.
    """

    name = "slide-transformer"
    paper = "Ding et al. 2024, Multimodal whole slide foundation model for pathology"
    position = "relative"

    def __init__(
        self,
        *,
        layers: Count = 6,
        heads: Count = 12,
        head_features: Size = 64,
        mlp_ratio: Count = 4,
        dropout: Probability = 0.1,
        step: Length | None = None,
        train_slopes: bool = False,
        radius: Length | None = None,
        checkpointing: bool = True,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        width = heads * head_features
        if width > 65_536:
            raise InputError(f"heads x head_features is {width}, expected at most 65,536: use fewer or smaller heads")
        per_scale = 1.0 if step is None else self.distance_scale / step
        slopes = [slope * per_scale for slope in published_slopes(heads)]
        blocks = [Block(width, heads, mlp_ratio, dropout, slopes, train_slopes) for _ in range(layers)]
        self.aggregator = TransformerAggregator(self.encoded, width, blocks, self.distance_scale, radius, checkpointing)
        self.classifier = self.make_classifier(width)

    def learned_biases(self) -> list[dict[str, Any]]:
        blocks = [module for module in self.modules() if isinstance(module, Block)]
        return [
            {"layer": number, **row, "unit": self.unit}
            for number, block in enumerate(blocks)
            for row in block.learned_biases(self.distance_scale)
        ]

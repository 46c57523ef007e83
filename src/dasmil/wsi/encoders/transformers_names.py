"""Checkpoints of Hugging Face transformers (ViT, DINOv2) under the names that timm gives the same network."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

NAMES = (
    ("embeddings.cls_token", "cls_token"),
    ("embeddings.position_embeddings", "pos_embed"),
    ("embeddings.patch_embeddings.projection.", "patch_embed.proj."),
    ("encoder.layer.", "blocks."),
    (".attention.output.dense.", ".attn.proj."),
    (".layernorm_before.", ".norm1."),
    (".layernorm_after.", ".norm2."),
    (".intermediate.dense.", ".mlp.fc1."),
    (".output.dense.", ".mlp.fc2."),
    (".mlp.weights_in.", ".mlp.fc1."),
    (".mlp.weights_out.", ".mlp.fc2."),
    (".layer_scale1.lambda1", ".ls1.gamma"),
    (".layer_scale2.lambda1", ".ls2.gamma"),
    ("layernorm.", "norm."),
)
UNUSED = ("embeddings.mask_token", "pooler.")
"""Weights that pretraining or another head needs."""


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights by timm's names; those of query, key and value are joined. Other names stay as they are."""
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        if name.startswith(UNUSED):
            continue
        block, part, kind = name.partition(".attention.attention.query.")
        if part:
            three = [f"{block}.attention.attention.{one}.{kind}" for one in ("query", "key", "value")]
            if all(one in state for one in three):
                name, value = f"{block}.attn.qkv.{kind}", torch.cat([state[one] for one in three])
        elif any(one in name for one in (".attention.attention.key.", ".attention.attention.value.")):
            continue
        for theirs, ours in NAMES:
            name = name.replace(theirs, ours)
        found[name] = value
    return found

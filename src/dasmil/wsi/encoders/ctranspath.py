"""CTransPath: a Swin-T whose patch embedding is a small convolutional network, from the published checkpoint file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dasmil.errors import InputError
from dasmil.wsi.encoders.network import NetworkEncoder
from dasmil.wsi.encoders.timm_import import import_timm
from dasmil.wsi.encoders.weights import load_weights, read_weights

NAME = "ctranspath"
DIM = 768
INPUT_PX = 224
LICENCE = "GPL-3.0"
PUBLISHED_SHA256 = "7c998680060c8743551a412583fac689db43cec07053b72dfec6dcd810113539"

_OLD_DOWNSAMPLE = re.compile(r"^layers\.(\d+)\.downsample\.")


class ConvStem(nn.Module):
    """Tokens of 4 x 4 pixels by two strided 3 x 3 convolutions and a projection, in place of timm's patch embedding."""

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 4,
        in_chans: int = 3,
        embed_dim: int = 96,
        norm_layer: type[nn.Module] | None = None,
        **_: Any,  # timm's further options, for layouts that a Swin does not ask for
    ) -> None:
        super().__init__()
        if patch_size != 4 or embed_dim % 8:
            raise InputError(f"patch_size {patch_size} and embed_dim {embed_dim}: expected 4 and a multiple of 8")
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        self.grid_size = (height // patch_size, width // patch_size)  # timm asks for it
        layers: list[nn.Module] = []
        widths = (in_chans, embed_dim // 8, embed_dim // 4)
        for before, after in pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.proj = nn.Sequential(*layers, nn.Conv2d(widths[-1], embed_dim, 1))
        self.norm = norm_layer(embed_dim) if norm_layer else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.proj(images).permute(0, 2, 3, 1))


def build_network() -> nn.Module:
    """The network without weights: [b, 3, 224, 224] to [b, 768]."""
    timm = import_timm()
    return timm.create_model(
        "swin_tiny_patch4_window7_224", pretrained=False, embed_layer=ConvStem, norm_layer=nn.LayerNorm, num_classes=0
    )


def convert(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names of the published checkpoint (an older timm) as today's timm has them.

    Left out: buffers that timm computes itself now, and a classifier. A downsampling layer ended the stage before
    it; now it begins the stage after.
    """
    old = any(name.startswith("layers.0.downsample.") for name in state)
    converted = {}
    for name, value in state.items():
        if name.endswith(("relative_position_index", "attn_mask")) or name.startswith("head."):
            continue
        if old:
            name = _OLD_DOWNSAMPLE.sub(lambda stage: f"layers.{int(stage[1]) + 1}.downsample.", name)
        converted[name] = value
    return converted


def create(weights: str | Path | None, device: str | torch.device) -> NetworkEncoder:
    """The encoder from a local checkpoint file."""
    if weights is None:
        raise InputError(
            "encoder 'ctranspath' needs its weights as a local file: download ctranspath.pth from the authors' "
            "repository (github.com/Xiyue-Wang/TransPath) and give --weights FILE"
        )
    loaded = read_weights(weights)
    network = build_network()
    load_weights(NAME, network, loaded, convert(loaded.state))
    published = loaded.sha256 == PUBLISHED_SHA256
    return NetworkEncoder(
        NAME,
        network,
        dim=DIM,
        input_px=INPUT_PX,
        interpolation="bilinear",
        device=device,
        sha256=loaded.sha256,
        licence=LICENCE,
        note="the published checkpoint" if published else "weights differ from the published ctranspath.pth",
    )

"""Encoders: networks that turn tiles into features, by name.

encoder = create_encoder("efficientnet-lite0")
features = encoder.encode(tiles)          # uint8 [b, 224, 224, 3] -> float32 [b, 1280]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dasmil.errors import InputError, unknown_name
from dasmil.wsi.config import DEFAULT_ENCODER
from dasmil.wsi.encoders.base import CallableEncoder, Encoder, NullEncoder, PixelEncoder

if TYPE_CHECKING:
    import torch

__all__ = ["DEFAULT_ENCODER", "CallableEncoder", "Encoder", "EncoderInfo", "create_encoder", "list_encoders"]

PIXELS = 64
"""Side of the patches whose pixels are kept, where none is said."""


@dataclass(frozen=True)
class EncoderInfo:
    """One row of `dasmil encoders`; dim and input_px are None where they depend on the model named."""

    name: str
    dim: int | None
    input_px: int | None
    licence: str
    weights: str
    installed: bool
    note: str


def create_encoder(
    name: str | Callable[[np.ndarray], np.ndarray],
    weights: str | Path | None = None,
    device: str | torch.device = "auto",
    *,
    dim: int | None = None,
    input_px: int | None = None,
) -> Encoder:
    """Create an encoder: a name of list_encoders(), timm:NAME, hf-hub:REPO, or a Python function with its dim.

    A foundation model has a short name (uni2-h) that stands for its repository (hf-hub:MahmoodLab/UNI2-h).

    A name that ends in [4,10] takes these blocks of the network, averaged over the tile, instead of its last layer.
    weights: a local file in place of the encoder's own weights; device: auto (CUDA, MPS, CPU), cpu, cuda:N, mps.
    input_px: the side of a tile, for a function (224) and for "none", which keeps the pixels (64).
    """
    if not isinstance(name, str):
        if dim is None:
            raise InputError("an encoder that is a Python function needs dim, the number of features it gives per tile")
        if weights is not None:
            raise InputError("an encoder that is a Python function brings its own weights; leave weights out")
        return CallableEncoder(name, dim=dim, input_px=input_px or 224)
    if name.endswith("]"):
        from dasmil.wsi.encoders.layers import split_name, with_layers

        whole, layers = split_name(name)
        return with_layers(create_encoder(whole, weights, device), layers)
    if name == "null":
        if weights is not None:
            raise InputError("encoder 'null' has no weights; leave --weights out")
        return NullEncoder()
    if name == "none":
        if weights is not None:
            raise InputError("encoder 'none' keeps the pixels and has no weights; leave --weights out")
        return PixelEncoder(input_px or PIXELS)
    if name == "efficientnet-lite0":
        from dasmil.wsi.encoders import efficientnet

        return efficientnet.create(weights, device)
    if name == "ctranspath":
        from dasmil.wsi.encoders import ctranspath

        return ctranspath.create(weights, device)
    if name.startswith("timm:"):
        from dasmil.wsi.encoders.timm_models import create_timm

        return create_timm(name, weights, device)
    if name.startswith("hf-hub:"):
        from dasmil.wsi.encoders.timm_models import create_hub

        return create_hub(name, weights, device)
    from dasmil.wsi.encoders.foundation import BY_NAME, ELSEWHERE

    if name in BY_NAME:
        from dasmil.wsi.encoders.timm_models import create_hub

        return create_hub(f"hf-hub:{BY_NAME[name].repo}", weights, device)
    if name in ELSEWHERE:
        model = ELSEWHERE[name]
        raise InputError(
            f"encoder {name!r} ({model.repo}) needs {model.package}, which dasmil does not call: use it as a Python "
            "function (docs/encoders.md), or read the features that TRIDENT or STAMP made with it"
        )
    raise unknown_name("encoder", name, [info.name for info in list_encoders()])


def list_encoders() -> list[EncoderInfo]:
    """Every encoder by name, and the two families of names; nothing heavy is imported, nothing downloaded."""
    from dasmil.wsi.encoders import ctranspath, efficientnet, timm_import
    from dasmil.wsi.encoders.foundation import ELSEWHERE, FOUNDATION

    timm = timm_import.installed()
    null, pixels = NullEncoder(), PixelEncoder(PIXELS)
    rows = [
        EncoderInfo(
            efficientnet.NAME,
            efficientnet.DIM,
            efficientnet.INPUT_PX,
            efficientnet.LICENCE,
            "in its package",
            efficientnet.installed(),
            f"the default; {efficientnet.NOTE}",
        ),
        EncoderInfo(
            ctranspath.NAME,
            ctranspath.DIM,
            ctranspath.INPUT_PX,
            ctranspath.LICENCE,
            "local file",
            timm,
            "the encoder of the paper, from the authors' ctranspath.pth",
        ),
        EncoderInfo(null.name, null.dim, null.input_px, null.licence, "none", True, null.note),
        EncoderInfo(pixels.name, pixels.dim, pixels.input_px, pixels.licence, "none", True, pixels.note),
        EncoderInfo(
            "timm:NAME",
            None,
            None,
            "the model's",
            "local file or download",
            timm,
            "any model of timm, with its own preprocessing; downloads from Hugging Face",
        ),
        EncoderInfo(
            "hf-hub:REPO",
            None,
            None,
            "the model's",
            "local file or download",
            timm,
            "any timm model on Hugging Face; those named here are built from their cards, none was run by the project",
        ),
    ]
    for model in FOUNDATION.values():
        access = "gated download" if model.gated else "download"
        rows.append(
            EncoderInfo(model.name, model.dim, model.input_px, model.licence, f"local file or {access}", timm, "")
        )
    for model in ELSEWHERE.values():
        note = f"{model.repo} needs {model.package}: use it as a Python function"
        rows.append(EncoderInfo(model.name, model.dim, model.input_px, model.licence, "elsewhere", False, note))
    return rows

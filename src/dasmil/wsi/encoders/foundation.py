"""Pathology foundation models: architecture, preprocessing, size and licence of each, in one table.

From the model cards and the programs of TRIDENT. The project has run none of them: no weights were available.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from torch import nn

from dasmil.wsi.encoders.network import IMAGENET_MEAN, IMAGENET_STD
from dasmil.wsi.encoders.timm_import import import_timm

_OPTIMUS_MEAN = (0.707223, 0.578729, 0.703617)
_OPTIMUS_STD = (0.211883, 0.230117, 0.177517)
_VIRCHOW = {"init_values": 1e-5, "mlp_ratio": 5.3375, "global_pool": "", "dynamic_img_size": True}
_OPTIMUS = {"img_size": 224, "init_values": 1e-5, "global_pool": "token"}


_PAGE = "see the model's page"
_KAIKO = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Foundation:
    """One model; options go to timm.create_model, gated_mlp adds the SwiGLU layers that options cannot name.

    name: what `--encoder` calls it, beside hf-hub:REPO. pooling: "class" takes the network's own pooled output;
    "class+mean" the class token and the mean patch token. gated: access to the repository has to be requested.
    transformers: the file has the names of Hugging Face transformers. file: its name, if it is none of the usual.
    norm_eps: the constant of layer normalisation, if it is not timm's.
    """

    name: str
    repo: str
    dim: int
    licence: str
    architecture: str
    options: dict[str, Any] = field(default_factory=dict)
    gated_mlp: bool = False
    pooling: Literal["class", "class+mean"] = "class"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    input_px: int = 224
    gated: bool = True
    transformers: bool = False
    file: str | None = None
    norm_eps: float | None = None

    def build(self) -> nn.Module:
        """The network without weights."""
        timm = import_timm()
        options = dict(self.options)
        if self.gated_mlp:
            options |= {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": nn.SiLU}
        if self.norm_eps is not None:
            options["norm_layer"] = partial(nn.LayerNorm, eps=self.norm_eps)
        return timm.create_model(self.architecture, pretrained=False, num_classes=0, **options)


FOUNDATION = {
    model.repo.lower(): model
    for model in (
        Foundation(
            "uni",
            "MahmoodLab/UNI",
            1024,
            "CC-BY-NC-ND-4.0",
            "vit_large_patch16_224",
            {"init_values": 1e-5, "dynamic_img_size": True},
        ),
        Foundation(
            "uni2-h",
            "MahmoodLab/UNI2-h",
            1536,
            "CC-BY-NC-ND-4.0",
            "vit_giant_patch14_224",
            {
                "img_size": 224,
                "depth": 24,
                "num_heads": 24,
                "init_values": 1e-5,
                "embed_dim": 1536,
                "mlp_ratio": 2.66667 * 2,
                "no_embed_class": True,
                "reg_tokens": 8,
                "dynamic_img_size": True,
            },
            gated_mlp=True,
        ),
        Foundation(
            "virchow",
            "paige-ai/Virchow",
            2560,
            "Apache-2.0",
            "vit_huge_patch14_224",
            _VIRCHOW,
            gated_mlp=True,
            pooling="class+mean",
        ),
        Foundation(
            "virchow2",
            "paige-ai/Virchow2",
            2560,
            "CC-BY-NC-ND-4.0",
            "vit_huge_patch14_224",
            {**_VIRCHOW, "reg_tokens": 4},
            gated_mlp=True,
            pooling="class+mean",
        ),
        Foundation(
            "gigapath",
            "prov-gigapath/prov-gigapath",
            1536,
            "Apache-2.0",
            "vit_giant_patch14_dinov2",
            {
                "img_size": 224,
                "patch_size": 16,
                "embed_dim": 1536,
                "depth": 40,
                "num_heads": 24,
                "init_values": 1e-5,
                "mlp_ratio": 5.33334,
            },
        ),
        Foundation(
            "h-optimus-0",
            "bioptimus/H-optimus-0",
            1536,
            "Apache-2.0",
            "vit_giant_patch14_reg4_dinov2",
            _OPTIMUS,
            mean=_OPTIMUS_MEAN,
            std=_OPTIMUS_STD,
        ),
        Foundation(
            "h-optimus-1",
            "bioptimus/H-optimus-1",
            1536,
            "CC-BY-NC-ND-4.0",
            "vit_giant_patch14_reg4_dinov2",
            _OPTIMUS,
            mean=_OPTIMUS_MEAN,
            std=_OPTIMUS_STD,
        ),
        Foundation(
            "h0-mini",
            "bioptimus/H0-mini",
            768,
            "CC-BY-NC-ND-4.0",
            "vit_base_patch14_reg4_dinov2",
            {**_OPTIMUS, "mlp_ratio": 5.33334},
            gated_mlp=True,
            mean=_OPTIMUS_MEAN,
            std=_OPTIMUS_STD,
        ),
        Foundation(
            "gigapath-flash",
            "prov-gigapath/prov-gigapath-flash",
            384,
            _PAGE,
            "vit_small_patch16_224",
            {"init_values": 1e-5, "mlp_ratio": 2048 / 384},
            gated_mlp=True,
        ),
        Foundation(
            "digepath",
            "xtxx/Digepath",
            1024,
            _PAGE,
            "vit_large_patch16_224",
            {"init_values": 1e-5, "dynamic_img_size": True},
        ),
        Foundation(
            "gpfm",
            "majiabo/GPFM",
            1024,
            _PAGE,
            "vit_large_patch14_dinov2",
            {"img_size": 224, "init_values": 1e-5},
            gated=False,
            file="GPFM.pth",
        ),
        Foundation(
            "phikon",
            "owkin/phikon",
            768,
            "Owkin, non-commercial",
            "vit_base_patch16_224",
            gated=False,
            transformers=True,
            norm_eps=1e-12,
        ),
        Foundation(
            "phikon-v2",
            "owkin/phikon-v2",
            1024,
            "Owkin, non-commercial",
            "vit_large_patch14_dinov2",
            {"img_size": 224, "patch_size": 16, "init_values": 1e-5},
            gated=False,
            transformers=True,
        ),
        Foundation(
            "midnight",
            "kaiko-ai/midnight",
            3072,
            "MIT",
            "vit_giant_patch14_dinov2",
            {"img_size": 224, "init_values": 1e-5, "global_pool": ""},
            pooling="class+mean",
            mean=_KAIKO,
            std=_KAIKO,
            gated=False,
            transformers=True,
        ),
    )
}
"""Models that timm can build, by repository."""
BY_NAME = {model.name: model for model in FOUNDATION.values()}


@dataclass(frozen=True)
class Elsewhere:
    """A model that only its own program can build."""

    name: str
    repo: str
    dim: int
    input_px: int
    licence: str
    package: str


ELSEWHERE = {
    model.name: model
    for model in (
        Elsewhere("conch", "MahmoodLab/CONCH", 512, 448, "CC-BY-NC-ND-4.0", "the package conch of its authors"),
        Elsewhere("conch-1.5", "MahmoodLab/conchv1_5", 768, 448, "CC-BY-NC-ND-4.0", "transformers (as part of TITAN)"),
        Elsewhere("musk", "xiangjx/musk", 1024, 384, "CC-BY-NC-ND-4.0", "the package musk of its authors"),
        Elsewhere("keep", "Astaxanthin/KEEP", 768, 224, _PAGE, "transformers, with code of the repository"),
        Elsewhere("hibou-b", "histai/hibou-b", 768, 224, "Apache-2.0", "transformers, with code of the repository"),
        Elsewhere("hibou-l", "histai/hibou-L", 1024, 224, "Apache-2.0", "transformers, with code of the repository"),
    )
}
"""Models that need their authors' programs: use them as a Python function, or read features of TRIDENT."""

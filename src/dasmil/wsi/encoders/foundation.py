"""Pathology foundation models that timm can build: architecture, preprocessing, size and licence, by repository.

From the model cards. None of them has been run by the project: their weights cannot be had without an account.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from dasmil.wsi.encoders.network import IMAGENET_MEAN, IMAGENET_STD
from dasmil.wsi.encoders.timm_import import import_timm

_OPTIMUS_MEAN = (0.707223, 0.578729, 0.703617)
_OPTIMUS_STD = (0.211883, 0.230117, 0.177517)
_VIRCHOW = {"init_values": 1e-5, "mlp_ratio": 5.3375, "global_pool": "", "dynamic_img_size": True}
_OPTIMUS = {"img_size": 224, "init_values": 1e-5, "global_pool": "token"}


@dataclass(frozen=True)
class Foundation:
    """One model; options go to timm.create_model, gated_mlp adds the SwiGLU layers that options cannot name.

    pooling: "class" takes the network's own pooled output; "class+mean" the class token and the mean patch token.
    """

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

    def build(self) -> nn.Module:
        """The network without weights."""
        timm = import_timm()
        options = dict(self.options)
        if self.gated_mlp:
            options |= {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": nn.SiLU}
        return timm.create_model(self.architecture, pretrained=False, num_classes=0, **options)


FOUNDATION = {
    model.repo.lower(): model
    for model in (
        Foundation(
            "MahmoodLab/UNI",
            1024,
            "CC-BY-NC-ND-4.0",
            "vit_large_patch16_224",
            {"init_values": 1e-5, "dynamic_img_size": True},
        ),
        Foundation(
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
            "paige-ai/Virchow",
            2560,
            "Apache-2.0",
            "vit_huge_patch14_224",
            _VIRCHOW,
            gated_mlp=True,
            pooling="class+mean",
        ),
        Foundation(
            "paige-ai/Virchow2",
            2560,
            "CC-BY-NC-ND-4.0",
            "vit_huge_patch14_224",
            {**_VIRCHOW, "reg_tokens": 4},
            gated_mlp=True,
            pooling="class+mean",
        ),
        Foundation(
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
            "bioptimus/H-optimus-0",
            1536,
            "Apache-2.0",
            "vit_giant_patch14_reg4_dinov2",
            _OPTIMUS,
            mean=_OPTIMUS_MEAN,
            std=_OPTIMUS_STD,
        ),
        Foundation(
            "bioptimus/H-optimus-1",
            1536,
            "CC-BY-NC-ND-4.0",
            "vit_giant_patch14_reg4_dinov2",
            _OPTIMUS,
            mean=_OPTIMUS_MEAN,
            std=_OPTIMUS_STD,
        ),
    )
}

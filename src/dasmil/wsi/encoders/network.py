"""A network as an encoder: device, normalisation, mixed precision."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dasmil.devices import choose_device
from dasmil.errors import InputError
from dasmil.wsi.encoders.base import Encoder

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# Small batches keep a CPU's activations in its cache (two to four times faster than batches of 64); a GPU wants many.
_BATCH = {"cpu": 4}
_GPU_BATCH = 256


class NetworkEncoder(Encoder):
    """A network that gives [b, dim] for images [b, 3, input_px, input_px], normalised as (x / 255 - mean) / std."""

    def __init__(
        self,
        name: str,
        network: nn.Module,
        *,
        input_px: int,
        mean: tuple[float, ...] = IMAGENET_MEAN,
        std: tuple[float, ...] = IMAGENET_STD,
        interpolation: str = "bicubic",
        device: str | torch.device = "auto",
        dim: int | None = None,
        sha256: str = "",
        licence: str = "",
        note: str = "",
    ) -> None:
        self.device = choose_device(device)
        self.network = network.eval().requires_grad_(False).to(self.device)
        if self.device.type != "mps":
            self.network = self.network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.mixed_precision = self.device.type in ("cuda", "mps")
        self.interpolation = interpolation
        self._mean = torch.tensor(mean, device=self.device).view(1, 3, 1, 1) * 255
        self._std = torch.tensor(std, device=self.device).view(1, 3, 1, 1) * 255
        super().__init__(
            name,
            dim=dim if dim is not None else self._output_size(name, input_px),
            input_px=input_px,
            sha256=sha256,
            licence=licence,
            note=note,
            batch_size=_BATCH.get(self.device.type, _GPU_BATCH),
        )

    def prepare(self, tiles: Tensor) -> Tensor:
        """Tiles [b, s, s, 3] uint8 as the network's input [b, 3, input_px, input_px]."""
        images = tiles.to(self.device, non_blocking=True).permute(0, 3, 1, 2).float()
        if images.shape[2] != self.input_px:
            size = (self.input_px, self.input_px)
            images = functional.interpolate(images, size, mode=self.interpolation, antialias=True).clamp(0, 255)
        return (images - self._mean) / self._std

    def _features(self, tiles: Tensor) -> np.ndarray:
        features = self._forward(tiles)
        if self.mixed_precision and not bool(torch.isfinite(features).all()):
            self.mixed_precision = False  # an activation beyond float16: this network needs full precision
            warnings.warn(f"encoder {self.name!r} overflows in half precision; using full precision", stacklevel=3)
            features = self._forward(tiles)
        return features.cpu().numpy()

    @torch.inference_mode()
    def _forward(self, tiles: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.float16, enabled=self.mixed_precision):
            return self.network(self.prepare(tiles)).float()

    @torch.inference_mode()
    def _output_size(self, name: str, input_px: int) -> int:
        features = self.network(torch.zeros(1, 3, input_px, input_px, device=self.device))
        if not isinstance(features, Tensor) or features.ndim != 2:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise InputError(
                f"encoder {name!r}: gives {shape} for one tile, expected [1, dim]; "
                "wrap it in a Python function that pools (docs/encoders.md)"
            )
        return features.shape[1]

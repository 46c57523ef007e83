"""Middle layers of an encoder: what chosen blocks give, each pooled over the tile, side by side.

The last layer of a network that was trained on photographs tells objects apart; earlier ones tell textures and colours,
which is often all that a small patch has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dasmil.errors import InputError, shown
from dasmil.wsi.encoders.base import Encoder
from dasmil.wsi.encoders.network import NetworkEncoder

_NAME = re.compile(r"(?P<encoder>[^\[\]]+)\[(?P<layers>[^\[\]]*)\]")
_BLOCK = re.compile(r"[0-9]{1,4}")
_BLOCKS = ("blocks", "_blocks", "layers", "stages")  # as timm and the default encoder call them


def split_name(name: str) -> tuple[str, tuple[int, ...]]:
    """ "efficientnet-lite0[4,10]" as the encoder's name and its blocks; without brackets no blocks."""
    if not name.endswith("]"):
        return name, ()
    found = _NAME.fullmatch(name)
    texts = [text.strip() for text in found["layers"].split(",")] if found else []
    numbers = tuple(int(text) for text in texts if _BLOCK.fullmatch(text))
    if found is None or len(numbers) < len(texts) or len(set(numbers)) < len(numbers):
        raise InputError(
            f"encoder {shown(name)}: expected different numbers of blocks in one pair of brackets, such as [4,10]"
        )
    return found["encoder"], numbers


class BlockFeatures(nn.Module):
    """The outputs of some blocks of a network, each averaged over its places, in one row [b, sum of channels]."""

    def __init__(self, network: nn.Module, blocks: Sequence[nn.Module], prefix: int, channels_last: bool) -> None:
        super().__init__()
        self.network, self.prefix, self.channels_last = network, prefix, channels_last
        self._seen: dict[int, Tensor] = {}
        for place, block in enumerate(blocks):
            block.register_forward_hook(self._keep(place))

    def _keep(self, place: int) -> Callable[[nn.Module, Any, Tensor], None]:
        def keep(_module: nn.Module, _given: Any, output: Tensor) -> None:
            self._seen[place] = output

        return keep

    def forward(self, images: Tensor) -> Tensor:
        self._seen.clear()
        self.network(images)
        found = [self._pooled(self._seen[place]) for place in sorted(self._seen)]
        self._seen.clear()
        return torch.cat(found, dim=1)

    def _pooled(self, output: Tensor) -> Tensor:
        if output.ndim == 3:  # tokens [b, t, d]; those in front stand for no place
            return output[:, self.prefix :].mean(1)
        return output.mean((1, 2) if self.channels_last else (2, 3))


def with_layers(encoder: Encoder, layers: Sequence[int]) -> Encoder:
    """The encoder that gives these blocks (from 0 on) of a network, instead of its last layer."""
    if not isinstance(encoder, NetworkEncoder):
        raise InputError(f"encoder {encoder.name!r} has no layers to choose from: leave --layers out")
    inner = encoder.network
    while isinstance(within := getattr(inner, "network", None), nn.Module):  # pooled by one of ours
        inner = within
    blocks = _blocks(inner)
    if not blocks:
        raise InputError(f"encoder {encoder.name!r}: no list of blocks was found in it, so --layers cannot choose any")
    beyond = [number for number in layers if number >= len(blocks)]
    if beyond:
        raise InputError(
            f"encoder {encoder.name!r}: has the blocks 0 to {len(blocks) - 1}, but {beyond[0]} was asked for"
        )
    prefix = int(getattr(inner, "num_prefix_tokens", 0) or 0)
    last = str(getattr(inner, "output_fmt", "NCHW")) == "NHWC"
    network = BlockFeatures(encoder.network, [blocks[number] for number in layers], prefix, last)
    size = (1, 3, encoder.input_px, encoder.input_px)
    with torch.inference_mode():
        encoder.dim = network(torch.zeros(size, device=encoder.device)).shape[1]
    encoder.network = network.eval()
    encoder.name = f"{encoder.name}[{','.join(map(str, layers))}]"
    return encoder


def _blocks(network: nn.Module) -> list[nn.Module]:
    for name in _BLOCKS:
        found = getattr(network, name, None)
        if isinstance(found, nn.ModuleList | nn.Sequential) and len(found):
            return list(found)
    stages = [getattr(network, f"layer{k}", None) for k in range(1, 5)]  # of residual networks
    return [stage for stage in stages if isinstance(stage, nn.Module)]

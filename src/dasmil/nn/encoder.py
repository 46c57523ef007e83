"""Instance encoders h of the three-part model: identity, whitened directions, one linear layer, CNNs for pictures."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.errors import InputError, unknown_name
from dasmil.nn.draws import channel_dropout, dropout
from dasmil.nn.linear import Linear
from dasmil.nn.patches import PatchCnn
from dasmil.ops.conv_pool import conv_pool

ENCODERS = ("identity", "whitened", "linear-relu", "mnist-cnn", "patch-cnn")
DIRECTIONS = 16


class Identity(nn.Module):
    """h(x) = x: the features were computed before."""

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.in_shape = (in_features,)
        self.out_features = in_features

    def forward(self, x: Tensor) -> Tensor:
        return x


class Whitening(nn.Module):
    """h(x) = (x - mean) W, fitted to the training instances before training and then frozen.

    The columns of W are the directions in which instances differ most, each scaled to variance one. A new one takes the
    first features as they are.
    """

    mean: Tensor
    directions: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_shape = (in_features,)
        self.out_features = out_features
        self.register_buffer("mean", torch.zeros(in_features))
        self.register_buffer("directions", torch.eye(in_features, out_features))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean.unsqueeze(-2)) @ self.directions


class LinearReLU(nn.Module):
    """h(x) = dropout(ReLU(x W + b)): the trainable layer that the paper puts in front for CAMELYON16 (768 -> 512)."""

    def __init__(self, in_features: int, out_features: int, dropout: float) -> None:
        super().__init__()
        self.in_shape = (in_features,)
        self.out_features = out_features
        self.linear = Linear(in_features, out_features)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        return dropout(F.relu(self.linear(x)), self.dropout, self.training)


class MnistCnn(nn.Module):
    """The CNN of the appendix: [..., n, 1, 28, 28] -> [..., n, 32], 15,552 parameters.

    conv 1->10 (5x5), ReLU, max pool 2, channel dropout 0.1, conv 10->20 (5x5), ReLU, max pool 2, dropout 0.5,
    linear 320->32, ReLU.
    """

    in_shape = (1, 28, 28)
    out_features = 32

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.linear = Linear(320, 32)
        self.channel_dropout = 0.1
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        lead = x.shape[:-3]
        stacked = self.conv1.weight.ndim == 5
        runs = self.conv1.weight.shape[0] if stacked else 1
        h = self._block(x.reshape(runs, -1, 1, 28, 28), self.conv1, stacked)
        h = channel_dropout(h, self.channel_dropout, self.training)
        h = self._block(h, self.conv2, stacked).flatten(2)
        h = dropout(h, self.dropout, self.training)
        h = F.relu(self.linear(h if stacked else h[0]))
        return h.view(*lead, 32)

    @staticmethod
    def _block(x: Tensor, conv: nn.Conv2d, stacked: bool) -> Tensor:
        assert conv.bias is not None
        if stacked:
            return conv_pool(x, conv.weight, conv.bias)
        return conv_pool(x, conv.weight.unsqueeze(0), conv.bias.unsqueeze(0))


Encoder = Identity | Whitening | LinearReLU | MnistCnn | PatchCnn


def make_encoder(name: str, in_features: int | None, out_features: int | None, dropout: float | None) -> Encoder:
    """The encoder of that name; ``None`` stands for the paper's size and dropout."""
    if name == "mnist-cnn":
        if out_features not in (None, 32):
            raise InputError(
                f"encoder_features is {out_features}, but the encoder 'mnist-cnn' always gives 32: leave it out"
            )
        return MnistCnn(0.5 if dropout is None else dropout)
    if name not in ENCODERS:
        raise unknown_name("encoder", name, ENCODERS)
    if in_features is None:
        raise InputError(f"in_features is missing: the encoder {name!r} needs the number of features of an instance")
    if name == "patch-cnn":
        return PatchCnn(in_features, 64 if out_features is None else out_features, 0.0 if dropout is None else dropout)
    if name == "linear-relu":
        return LinearReLU(
            in_features, 512 if out_features is None else out_features, 0.0 if dropout is None else dropout
        )
    if name == "whitened":
        if dropout:
            raise InputError("encoder_dropout is set, but the encoder 'whitened' has no dropout: leave it out")
        return Whitening(in_features, min(DIRECTIONS, in_features) if out_features is None else out_features)
    if out_features not in (None, in_features):
        raise InputError(
            f"encoder_features is {out_features}, but the encoder 'identity' keeps the {in_features} features: "
            "leave it out or use encoder='linear-relu'"
        )
    if dropout:
        raise InputError("encoder_dropout is set, but the encoder 'identity' has no dropout: use encoder='linear-relu'")
    return Identity(in_features)

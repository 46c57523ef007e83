"""Calls both C++ kernels over sizes around their blocks, for scripts/kernels_under_sanitizers.sh."""

from __future__ import annotations

import importlib
import itertools
import sys

import torch

import dasmil
from dasmil.ops import conv_pool
from dasmil.ops.das_attention import das_attention

SIZES = [*range(1, 20), 31, 32, 33, 63, 64, 65, 95, 96, 97, 191, 193, 385]
PHI = ("sigmoid", "identity", "exponential", "gaussian")


def attention(n: int, d: int, o: int, h: int, b: int) -> None:
    """One call of the operator and its backward pass, its options turned on and off by the size."""
    tensors = [torch.randn(b, h, n, width) for width in (d, d, o)]
    tensors += [torch.rand(h), torch.rand(h), torch.randn(h, 2, d), torch.randn(b, h, 2, d), torch.randn(h, 2, o)]
    query, key, value, theta, beta, k, q, v = (tensor.requires_grad_() for tensor in tensors)
    mask = torch.rand(b, n) < 0.9 if n % 3 == 0 and n > 8 else None
    section = torch.randint(0, 3, (n,)) if n % 4 == 0 else None
    out = das_attention(
        query, key, value, torch.rand(b, n, 2 + n % 2) * 100, theta=theta, beta=beta, key_embed=k, query_embed=q,
        value_embed=v, phi=PHI[n % 4], scale=0.3, distance_scale=2.0, product_term=n % 5 == 0, self_pair=n % 2 == 0,
        mask=mask, section=section, dropout_p=0.2 * (n % 7 == 0), backend="native",
    )  # fmt: skip
    out.sum().backward()


def neighbours(n: int, d: int, o: int, bias: str | None, embedded: bool) -> None:
    """One call with a radius, which leaves blocks out even in small bags, and its backward pass."""
    tensors = [torch.randn(2, n, width, requires_grad=True) for width in (d, d, o)]
    coords = torch.rand(n, 2 + n % 2) * 10
    own: dict[str, torch.Tensor] = {}
    if embedded:
        own = {"theta": torch.rand(2), "beta": torch.rand(2), "query_embed": torch.randn(2, 2, d)}
        own["value_embed"] = torch.randn(2, 2, o)
    if bias == "bins":
        own["bias_table"] = torch.randn(2, 3)
    elif bias:
        own["bias_scale"] = torch.rand(2) + 0.1
    for tensor in own.values():
        tensor.requires_grad_()
    out = das_attention(
        *tensors, coords, scale=0.3, radius=[0.0, 2.0] if n % 5 == 0 else 2.0, bias=bias,
        mask=torch.rand(n) < 0.9 if n % 3 == 0 and n > 8 else None,
        section=torch.randint(-1, 3, (n,)) if n % 4 == 0 else None,
        bias_edges=torch.tensor([1.0, 2.0]) if bias == "bins" else None, dropout_p=0.2 * (n % 7 == 0), backend="native",
        **own,
    )  # fmt: skip
    out.sum().backward()


def convolution(runs: int, images: int, block: tuple[int, int, int], portable: bool) -> None:
    """One call of the fused convolution and its backward pass."""
    channels, side, outputs = block
    x = torch.randn(runs, images, channels, side, side, requires_grad=True)
    weight = torch.randn(runs, outputs, channels, 5, 5, requires_grad=True)
    bias = torch.randn(runs, outputs, requires_grad=True)
    out = conv_pool._Fused.apply(x, weight, bias, portable)
    assert isinstance(out, torch.Tensor)
    out.sum().backward()


def main(place: str) -> None:
    assert dasmil.__file__.startswith(place), dasmil.__file__
    attention(5, 4, 3, 2, 0)  # no bag at all
    calls = 1
    for n, shape in itertools.product(SIZES, ((1, 1, 1, 1), (10, 20, 1, 2), (7, 33, 2, 1))):
        attention(n, *shape)
        calls += 1
    native = importlib.import_module("dasmil.ops.das_attention.native")
    native.WORTH_ORDERING = 0
    for n, (d, o), bias in itertools.product(SIZES, ((1, 3), (16, 32), (10, 16), (32, 7)), (None, "linear", "bins")):
        for embedded in (False, True):
            neighbours(n, d, o, bias, embedded)
            calls += 1
    for runs, images, block, portable in itertools.product((1, 3), (1, 2, 7, 17), conv_pool.COMPILED, (False, True)):
        convolution(runs, images, block, portable)
        calls += 1
    print(f"{calls} calls of both kernels under address and undefined-behaviour sanitizers, none stopped")


if __name__ == "__main__":
    torch.manual_seed(0)
    main(sys.argv[1])

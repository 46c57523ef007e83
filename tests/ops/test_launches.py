"""`chunked` on accelerators: the size of its blocks and the number of its launches, counted without one."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

chunked = importlib.import_module("dasmil.ops.das_attention.chunked")
PLAIN = ("theta", "beta", "key_embed", "query_embed", "value_embed")
NO_LAUNCH = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::_unsafe_view", "aten::lift_fresh")


class Launches(TorchDispatchMode):
    """Counts the operations that would be launched on a device: all but views and fresh memory."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().split(".")[0]
        self.count += not func.is_view and name not in NO_LAUNCH
        return func(*args, **(kwargs or {}))


@pytest.fixture
def like_an_accelerator(monkeypatch):
    """The CPU takes the path of other devices; blocks are as large as `chunked.BLOCK` says."""
    monkeypatch.setattr(chunked, "accelerated", lambda device: True)
    monkeypatch.setattr(chunked, "block_pairs", lambda device: chunked.BLOCK)


def launches_of_a_block(problem, monkeypatch, **options) -> float:
    """Forward and backward, from the difference of eight blocks and four."""
    counted = []
    for blocks in (8, 4):
        monkeypatch.setattr(chunked, "BLOCK", 64 * 64 // blocks)
        with Launches() as launches:
            problem(64, d=16, o=16, **options).run("chunked", torch.float32)
        counted.append(launches.count)
    return (counted[0] - counted[1]) / 4


@pytest.mark.parametrize(
    ("options", "limit"),
    [({}, 39), ({"axes": 3}, 43), ({"bias": "linear", "absent": PLAIN}, 25), ({"dropout_p": 0.1}, 74)],
    ids=["plane", "space", "linear bias", "dropout"],
)
def test_launches_of_a_block(problem, monkeypatch, like_an_accelerator, options, limit):
    assert launches_of_a_block(problem, monkeypatch, **options) == limit


@pytest.mark.parametrize("options", [{}, {"axes": 3, "mask": True}, {"bias": "gaussian", "section": True, "tokens": 1}])
def test_the_path_of_accelerators_is_exact(problem, assert_exact, like_an_accelerator, monkeypatch, options):
    monkeypatch.setattr(chunked, "BLOCK", 200)
    for dtype in (torch.float64, torch.float32):
        assert_exact(problem(37, **options), "chunked", dtype)


@pytest.mark.parametrize(
    ("gigabytes", "pairs"), [(2, 1 << 22), (8, 1 << 22), (16, 1 << 23), (40, 1 << 24), (80, 1 << 24)]
)
def test_blocks_grow_with_the_memory_of_the_device(gigabytes, pairs):
    assert chunked.pairs_that_fit(gigabytes << 30) == pairs
    assert chunked.pairs_that_fit(8 << 30) * 4 * chunked.BUFFERS <= 8 << 30


def test_a_device_decides_its_blocks(monkeypatch):
    class Properties:
        total_memory = 40 << 30

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert chunked.block_pairs(torch.device("cuda", 0)) == chunked.LARGEST
    assert chunked.block_pairs(torch.device("mps")) == chunked.SMALLEST
    assert chunked.block_pairs(torch.device("cpu")) == chunked.BLOCK

"""One training run on several processes that torchrun started: each takes its share of the bags of a step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dasmil.errors import InputError


class Ranks(NamedTuple):
    """Which of how many processes this one is."""

    rank: int = 0
    world: int = 1

    @staticmethod
    def here() -> Ranks:
        if dist.is_available() and dist.is_initialized():
            return Ranks(dist.get_rank(), dist.get_world_size())
        return Ranks()

    def summed(self, tensor: Tensor | None, like: Tensor) -> Tensor:
        """The sum over all processes, in place, None for nothing; every process has the same numbers afterwards."""
        tensor = torch.zeros_like(like, requires_grad=False) if tensor is None else tensor
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def gathered(self, mine: Tensor, steps: int) -> Tensor:
        """What every process has of its own steps, in the order of the steps."""
        if self.world == 1:
            return mine
        everyone = mine.new_zeros(steps, *mine.shape[1:])
        everyone[self.rank :: self.world] = mine
        return self.summed(everyone, everyone)

    def check(self, bags: int) -> None:
        if self.world > bags:
            raise InputError(f"{self.world} processes train on {bags} bags: start at most one process for each bag")


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Join the processes that torchrun started, each with a GPU of its own; one process is alone without it."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or not dist.is_available() or dist.is_initialized():
        yield Ranks.here()
        return
    on_gpus = device in ("auto", "cuda") and torch.cuda.is_available()
    if on_gpus:
        own, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if own >= there:
            raise InputError(f"process {own} has no GPU of its own: start at most {there} with --nproc-per-node")
        torch.cuda.set_device(own)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    try:
        yield Ranks.here()
    finally:
        dist.destroy_process_group()

"""Random numbers while training: torch's own, or those of runs that each draw from a key of their own.

With `drawing(Draws(keys))` the k-th draw of a run is a function of its key and k alone: a run drops and sees what it
would alone, whatever is stacked beside it, one by one or all at once, and again in a backward pass that recomputes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Draws:
    """Draws of runs with these keys. A tensor [R, ...] is filled run by run; with one key all of it is that run's."""

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        self.keys = keys
        self.number = 0

    @staticmethod
    def of(*parts: Sequence[int]) -> Draws:
        """Keys from lists of numbers, one list a run (its seed, start and epoch)."""
        return Draws(np.array([np.random.SeedSequence(part).generate_state(1, np.uint64)[0] for part in parts]))

    def at(self, step: int) -> Draws:
        """The draws of one step."""
        return Draws(_mixed(self.keys, step))

    def one(self, run: int) -> Draws:
        """The draws of one run of these, from here on."""
        one = Draws(self.keys[run : run + 1])
        one.number = self.number
        return one

    def seeds(self) -> Tensor:
        """The next seed of every run [R], from 0 to 2^63 - 1."""
        self.number += 1
        return torch.from_numpy((_mixed(self.keys, self.number) >> np.uint64(1)).astype(np.int64))

    def kept(self, shape: Sequence[int], p: float, like: Tensor) -> Tensor:
        """Factors of dropout: 0 with probability p, else 1 / (1 - p)."""
        factors = torch.empty(tuple(shape), dtype=like.dtype, device=like.device)
        for part, generator in self._parts(factors):
            part.bernoulli_(1 - p, generator=generator)
        return factors.div_(1 - p)

    def uniform(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Numbers from 0 to 1."""
        found = torch.empty(tuple(shape), dtype=like.dtype, device=like.device)
        for part, generator in self._parts(found):
            part.uniform_(generator=generator)
        return found

    def some(self, n: int, count: int) -> Tensor:
        """For every run ``count`` different numbers below n [R, count], in random order."""
        generator = torch.Generator()
        return torch.stack(
            [torch.randperm(n, generator=generator.manual_seed(seed))[:count] for seed in self.seeds().tolist()]
        )

    def _parts(self, whole: Tensor) -> Iterator[tuple[Tensor, torch.Generator]]:
        generator = torch.Generator(whole.device)
        rows = [whole] if len(self.keys) == 1 else list(whole)
        for part, seed in zip(rows, self.seeds().tolist(), strict=True):
            yield part, generator.manual_seed(seed)


_now: ContextVar[Draws | None] = ContextVar("draws", default=None)


@contextmanager
def drawing(draws: Draws | None) -> Iterator[None]:
    """Layers draw from these inside (None: from torch)."""
    token = _now.set(draws)
    try:
        yield
    finally:
        _now.reset(token)


@contextmanager
def drawing_alone(run: int) -> Iterator[None]:
    """Inside, one of the stacked runs is computed by itself, and draws what it would without the others."""
    draws = _now.get()
    with drawing(draws if draws is None or len(draws.keys) == 1 else draws.one(run)):
        yield


def drawing_again(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function, drawing the same whenever it is called: in the forward pass and when it is recomputed."""
    draws = _now.get()
    if draws is None:
        return function
    number = draws.number

    def again(*arguments: Any) -> Tensor:
        draws.number = number
        with drawing(draws):
            return function(*arguments)

    return again


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """As torch.nn.functional.dropout; of stacked runs x is [R, ...]."""
    draws = _now.get()
    if draws is None or not training or p == 0:
        return F.dropout(x, p, training)
    return x * draws.kept(x.shape, p, x)


def channel_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Whole channels of x [..., channels, height, width] are dropped; of stacked runs x is [R, ...]."""
    if not training or p == 0:
        return x
    shape, draws = (*x.shape[:-2], 1, 1), _now.get()
    return x * (F.dropout(x.new_ones(shape), p) if draws is None else draws.kept(shape, p, x))


class Dropout(nn.Module):
    """As torch.nn.Dropout, with the draws of runs."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)


def uniform(shape: Sequence[int], like: Tensor) -> Tensor:
    """Numbers from 0 to 1; of stacked runs the first dimension is the run."""
    draws = _now.get()
    if draws is None:
        return torch.rand(tuple(shape), dtype=like.dtype, device=like.device)
    return draws.uniform(shape, like)


def permutation(n: int) -> Tensor:
    """The numbers below n in random order, for one run."""
    draws = _now.get()
    return torch.randperm(n) if draws is None else draws.some(n, n)[0]


def some(n: int, count: int) -> Tensor:
    """``count`` different numbers below n in random order: [count] for one run, [R, count] for stacked runs."""
    draws = _now.get()
    if draws is None:
        return torch.randperm(n)[:count]
    found = draws.some(n, count)
    return found if len(found) > 1 else found[0]


def attention_seed() -> Tensor | int | None:
    """What `das_attention` takes as dropout_seed: a number for one run, [R] for stacked runs, None: torch's."""
    draws = _now.get()
    if draws is None:
        return None
    seeds = draws.seeds()
    return seeds if len(seeds) > 1 else int(seeds)


def attention_dropout(p: float, training: bool) -> dict[str, Any]:
    """What `das_attention` takes about dropout, in training and outside of it."""
    now = p if training else 0.0
    return {"dropout_p": now, "dropout_seed": attention_seed() if now else None}


def _mixed(keys: NDArray[np.uint64], number: int) -> NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea and Flood 2014): well spread 64-bit numbers from keys and a counter."""
    with np.errstate(over="ignore"):
        z = keys + np.uint64(number + 1) * GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

"""Optimisers over one flat tensor [runs, parameters]: every run has its own learning rate and weight decay."""

from __future__ import annotations

import math
from typing import Literal, Protocol

import torch
from torch import Tensor

from dasmil.errors import DataError

OptimizerName = Literal["adamw", "adam", "radam"]

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
AT_ONCE = 2**17
"""Parameters of all runs that a step works on at a time: small enough to stay in the processor's cache."""


class Optimizer(Protocol):
    """Moves the flat parameters in place; ``state`` holds all that a checkpoint needs."""

    def step(self, gradient: Tensor, lr: Tensor) -> None: ...
    def state(self) -> dict[str, Tensor]: ...
    def load(self, state: dict[str, Tensor]) -> None: ...


class Adam:
    """AdamW, Adam (weight decay added to the gradient) and RAdam, equal to those of torch.optim.

    parameters [R, P] are changed in place. lr in ``step`` and weight_decay are [R, 1], or [R, P] where parameters
    differ. RAdam shrinks the weights as AdamW does (torch.optim.RAdam with decoupled_weight_decay): added to the
    gradient, the paper's weight decay of 0.1 for TransMIL drives all its weights to zero.
    """

    def __init__(self, name: OptimizerName, parameters: Tensor, weight_decay: Tensor) -> None:
        self.name = name
        self.parameters = parameters
        self.weight_decay = weight_decay
        self.decays = bool((weight_decay != 0).any())
        self.mean = torch.zeros_like(parameters)
        self.square = torch.zeros_like(parameters)
        self.steps = torch.zeros(len(parameters), dtype=torch.int64)  # of every run
        self._shrink: tuple[Tensor, Tensor] | None = None  # lr and 1 - lr * weight decay, while lr stays the same

    @torch.no_grad()
    def step(self, gradient: Tensor, lr: Tensor) -> None:
        if self.decays and self.name != "adam" and (self._shrink is None or self._shrink[0] is not lr):
            self._shrink = (lr, 1 - lr * self.weight_decay)
        self.steps += 1
        runs, size = self.parameters.shape
        width = max(1, AT_ONCE // runs)
        counts = self.steps.tolist()
        groups = [slice(None)] if len(set(counts)) == 1 else [slice(run, run + 1) for run in range(runs)]
        for rows, t in zip(groups, counts):
            for start in range(0, size, width):
                columns = slice(start, start + width) if width < size else slice(None)
                self._move(gradient, lr, rows, columns, t)

    def _move(self, gradient: Tensor, lr: Tensor, rows: slice, columns: slice, t: int) -> None:
        """Step t of these runs and parameters."""

        def part(t: Tensor) -> Tensor:
            return t[rows] if t.shape[1] == 1 else t[rows, columns]

        p, mean, square = (x[rows, columns] for x in (self.parameters, self.mean, self.square))
        gradient, lr = gradient[rows, columns], part(lr)
        if self.decays:
            if self.name != "adam":
                assert self._shrink is not None
                p.mul_(part(self._shrink[1]))
            else:
                gradient = torch.addcmul(gradient, p, part(self.weight_decay))
        mean.lerp_(gradient, 1 - BETA1)
        square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        correction1, correction2 = 1 - BETA1**t, 1 - BETA2**t
        if self.name == "radam":
            limit = 2 / (1 - BETA2) - 1
            length = limit - 2 * t * BETA2**t / correction2
            if length <= 5.0:  # too few squares to trust: a step of momentum alone
                p.addcmul_(mean, lr, value=-1 / correction1)
                return
            rectify = math.sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)) * math.sqrt(
                correction2
            )
            p.addcmul_(mean / square.sqrt().add_(EPS), lr, value=-rectify / correction1)
            return
        p.addcmul_(mean / square.sqrt().mul_(1 / math.sqrt(correction2)).add_(EPS), lr, value=-1 / correction1)

    def state(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "square": self.square, "steps": self.steps}

    def load(self, state: dict[str, Tensor]) -> None:
        for name, value in (("mean", self.mean), ("square", self.square), ("steps", self.steps)):
            _copy(value, state, name)


class Lookahead:
    """Every k steps pull slow weights a share alpha towards the fast ones and continue from there.

    Zhang et al. 2019, "Lookahead optimizer: k steps forward, 1 step back".
    """

    def __init__(self, fast: Adam, k: int, alpha: float) -> None:
        self.fast = fast
        self.k = k
        self.alpha = alpha
        self.slow = fast.parameters.detach().clone()

    @torch.no_grad()
    def step(self, gradient: Tensor, lr: Tensor) -> None:
        self.fast.step(gradient, lr)
        for run in (self.fast.steps % self.k == 0).nonzero().flatten().tolist():
            self.slow[run].lerp_(self.fast.parameters[run], self.alpha)
            self.fast.parameters[run] = self.slow[run]

    def state(self) -> dict[str, Tensor]:
        return {**self.fast.state(), "slow": self.slow}

    def load(self, state: dict[str, Tensor]) -> None:
        self.fast.load(state)
        _copy(self.slow, state, "slow")


def create_optimizer(
    name: OptimizerName, parameters: Tensor, weight_decay: Tensor, *, lookahead: int = 0, lookahead_alpha: float = 0.5
) -> Optimizer:
    """An optimiser of the flat parameters; lookahead = 0 means without."""
    adam = Adam(name, parameters, weight_decay)
    return Lookahead(adam, lookahead, lookahead_alpha) if lookahead else adam


def clip_gradient(gradient: Tensor, limit: float) -> None:
    """Scale each run's gradient [R, P] in place so that its norm is at most ``limit``."""
    gradient.mul_((limit / (gradient.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0))


def _copy(target: Tensor, state: dict[str, Tensor], name: str) -> None:
    if name not in state or state[name].shape != target.shape:
        found = tuple(state[name].shape) if name in state else "nothing"
        raise DataError(f"the checkpoint has {found} as optimiser state {name!r}, expected {tuple(target.shape)}")
    target.copy_(state[name])

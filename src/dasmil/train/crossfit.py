"""Networks trained on several folds at once: every replica learns from its own fold and is judged on the rest of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dasmil.models.base import MILModel
from dasmil.nn.draws import Draws, drawing, drawing_alone
from dasmil.train.augment import random_part
from dasmil.train.feed import Feed
from dasmil.train.loss import Lesson
from dasmil.train.optim import Optimizer, clip_gradient, create_optimizer
from dasmil.train.replicas import Replicas

Array = NDArray[np.float64]
Bags = NDArray[np.int64]


@dataclass(frozen=True)
class Recipe:
    """How the replicas are trained. instances: at most so many random ones of a bag in a step."""

    epochs: int
    lr: float
    weight_decay: float
    accumulate: int = 1
    instances: int = 1024
    patience: int = 10
    distance_lr: float = 4.0
    """Step of theta and beta as a share of their start, in units of lr."""
    clip: float | None = None
    """Largest norm of a gradient; None: any. Clipping takes weight from the bags that are judged wrongly."""


@dataclass(frozen=True, eq=False)
class FoldFit:
    """Outputs of held-out bags [bags, outputs], the best epoch, and the replicas as they were then.

    The outputs of a fold are those of the epoch that the other folds choose, so that their loss is as honest as that of
    a regression whose penalty was chosen inside the fold.
    """

    outputs: Array
    epoch: int
    models: list[MILModel]


def train_folds(
    models: Sequence[MILModel],
    feed: Feed,
    lesson: Lesson,
    weights: Array,
    held: Sequence[Bags],
    recipe: Recipe,
    *,
    losses: Callable[[Array], Array],
    outputs: int,
    enough: float = 0.0,
    seed: int = 0,
) -> FoldFit:
    """Train a replica for every set of held-out bags, all in one pass over the bags.

    weights [bags]: what each bag counts; losses: per bag of outputs [bags, outputs]. The replicas are kept at the epoch
    with the lowest loss on all held-out bags; a mean loss below ``enough`` ends training.
    """
    n = len(feed.facts.ids)
    replicas = Replicas(models, feed.device)
    runs = replicas.runs
    learns = torch.ones(runs, n)
    for row, bags in enumerate(held):
        learns[row, bags] = 0.0
    counts = (learns * torch.from_numpy(weights).float()) / float(weights.mean())
    flat = replicas.flat.detach()
    lr, decay = _rates(replicas, recipe)
    optimizer = create_optimizer("adamw", flat, decay)
    parts = [feed.part(bags.tolist()) for bags in held]
    best: tuple[float, int, Tensor] | None = None
    found: list[Array] = []
    each: list[Array] = []
    for epoch in range(recipe.epochs + 1):
        if epoch:
            _epoch(replicas, feed, lesson, counts, recipe, optimizer, lr, epoch, seed)
        found.append(_held_out(replicas, parts, held, n, outputs))
        each.append(np.nan_to_num(weights * losses(found[-1]), nan=np.inf))
        loss = float(each[-1].sum())
        if np.isfinite(loss) and (best is None or loss < best[0]):
            best = loss, epoch, flat.clone()
        if best is not None and (epoch - best[1] >= recipe.patience or best[0] < enough * weights.sum()):
            break
    assert best is not None
    models = [replicas.export(run, best[2][run]).eval() for run in range(runs)]
    return FoldFit(outputs_of_folds(np.stack(found), np.stack(each), held), best[1], models)


def outputs_of_folds(found: Array, losses: Array, held: Sequence[Bags]) -> Array:
    """Of outputs of all epochs [epochs, bags, outputs] for each fold those of the epoch that is best elsewhere.

    losses [epochs, bags]: of held-out bags.
    """
    chosen = np.zeros(found.shape[1:])
    for bags in held:
        elsewhere = np.delete(losses, bags, axis=1).sum(1)
        chosen[bags] = found[int(elsewhere.argmin()), bags]
    return chosen


def _rates(replicas: Replicas, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Learning rate and weight decay [R, P]; learned distances have their own step and no decay."""
    flat = replicas.flat.detach()
    lr, decay = torch.full_like(flat, recipe.lr), torch.full_like(flat, recipe.weight_decay)
    for where in replicas.columns(replicas.model.distance_parameters()).values():
        lr[:, where] *= recipe.distance_lr * flat[:, where].abs().clamp_min(1e-3)
        decay[:, where] = 0.0
    return lr, decay


def _epoch(
    replicas: Replicas,
    feed: Feed,
    lesson: Lesson,
    counts: Tensor,
    recipe: Recipe,
    optimizer: Optimizer,
    lr: Tensor,
    epoch: int,
    seed: int,
) -> None:
    """One pass over the bags; a bag moves only the replicas that may learn from it."""
    runs, n = replicas.runs, len(feed.facts.ids)
    keys = [[seed, run, epoch] for run in range(runs)]
    draws = Draws.of(*([*key, 1] for key in keys))
    replicas.model.train()
    order = feed.epoch(np.random.default_rng([seed, epoch]), [np.random.default_rng(key) for key in keys])
    gradient: Tensor | None = None
    for index, given in enumerate(order):
        with drawing(draws.at(index)):
            step = random_part(given, recipe.instances, draws.at(index))
            bags = torch.from_numpy(step.bags)
            weight = counts[torch.arange(runs), bags]
            if replicas.model.stackable:
                output = replicas.forward_all(step.features, step.coords, step.section)
                new = replicas.gradient_all(lesson(output, bags, None) * weight)
            else:
                rows = []
                for run in range(runs):
                    with drawing_alone(run):
                        section = None if step.section is None else step.section[run]
                        output = replicas.forward_one(run, step.features[run], step.coords[run], section)
                        rows.append(replicas.gradient_one(run, lesson(output, bags[run], run) * weight[run]))
                new = torch.stack(rows)
        gradient = new if gradient is None else gradient.add_(new)
        if (index + 1) % recipe.accumulate == 0 or index + 1 == n:
            gradient.div_(recipe.accumulate)
            if recipe.clip is not None:
                clip_gradient(gradient, recipe.clip)
            optimizer.step(gradient, lr)
            gradient = None


@torch.no_grad()
def _held_out(replicas: Replicas, parts: Sequence[Feed], held: Sequence[Bags], n: int, outputs: int) -> Array:
    found = np.zeros((n, outputs))
    replicas.model.eval()
    for run, (part, bags) in enumerate(zip(parts, held, strict=True)):
        for step in part.batches():
            logit = replicas.forward_one(run, step.features, step.coords, step.section).logit
            found[bags[step.bags]] = logit.double().reshape(len(step.bags), -1).numpy()
    return found

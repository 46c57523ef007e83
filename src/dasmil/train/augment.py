"""Random changes of instances while training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dasmil.errors import InputError
from dasmil.models.base import MILModel
from dasmil.nn.draws import Draws, dropout, uniform
from dasmil.train.feed import Step

TURN_DEGREES = 10.0
SCALE = 0.1
SHIFT_PX = 1.5


def jitter_digits(features: Tensor) -> Tensor:
    """Each digit [..., 1, h, w] turned by up to 10 degrees, scaled by up to 10 % and shifted by up to 1.5 px.

    What comes in from outside the picture is its darkest value.
    """
    if features.ndim < 4 or features.shape[-3] != 1:
        raise InputError(
            f"augment 'digits' needs pictures [n, 1, h, w], found instances of {tuple(features.shape[-3:])}"
        )
    images = features.reshape(-1, *features.shape[-3:])
    count, _, height, width = images.shape
    draws = uniform((*features.shape[:-3], 4), features).view(count, 4).T * 2 - 1
    angle = draws[0] * math.radians(TURN_DEGREES)
    zoom = 1 + draws[1] * SCALE
    cos, sin = torch.cos(angle) * zoom, torch.sin(angle) * zoom
    shift_x, shift_y = draws[2] * (2 * SHIFT_PX / width), draws[3] * (2 * SHIFT_PX / height)
    matrix = torch.stack([cos, -sin, shift_x, sin, cos, shift_y], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, [count, 1, height, width], align_corners=False)
    background = images.amin((1, 2, 3), keepdim=True)
    moved = F.grid_sample(images - background, grid, align_corners=False)
    return (moved + background).view(features.shape)


def turn_patches(features: Tensor) -> Tensor:
    """Each square patch [..., c, s, s] turned by a random number of quarters and, every other one, mirrored."""
    if features.ndim < 4 or features.shape[-1] != features.shape[-2]:
        raise InputError(
            f"augment 'patches' needs square pictures [n, c, s, s], found instances of {tuple(features.shape[-3:])}"
        )
    like = features if features.is_floating_point() else torch.empty(0, device=features.device)
    way = (uniform(features.shape[:-3], like) * 8).long().clamp(max=7)
    found = features.clone(memory_format=torch.contiguous_format)
    for number in range(1, 8):
        chosen = way == number
        turned = torch.rot90(features[chosen], number % 4, (-2, -1))
        found[chosen] = turned.flip(-1) if number >= 4 else turned
    return found


AUGMENTATIONS = {"none": lambda features: features, "digits": jitter_digits, "patches": turn_patches}


@contextmanager
def feature_dropout(models: Sequence[MILModel], p: float) -> Iterator[None]:
    """Inside, what the encoders of these models give is dropped with probability p while they train."""

    def drop(module: Any, _: Any, output: Tensor) -> Tensor:
        return dropout(output, p, module.training)

    with ExitStack() as hooks:
        for model in models if p else ():
            hooks.callback(model.encoder.register_forward_hook(drop).remove)
        yield


def random_part(step: Step, most: int, draws: Draws) -> Step:
    """At most so many instances of every bag of a step, drawn anew for each.

    While starts compete that costs little, and what a start learns from other parts each time is not the bag by heart.
    """
    n = step.coords.shape[1]
    if most >= n:
        return step
    index = draws.some(n, most).to(step.coords.device)

    def chosen(x: Tensor) -> Tensor:
        return torch.stack([own.index_select(0, some) for own, some in zip(x, index, strict=True)])

    section = None if step.section is None else chosen(step.section)
    return Step(step.bags, chosen(step.features), chosen(step.coords), section)


def mixed(step: Step, other: Step, share: float, draws: Draws) -> Step:
    """A random part of the instances of each: ``share`` of the step's bags and the rest of the other's, run by run.

    The two lie in different sections, so no distance between them counts. The bags' numbers are those of ``step``.
    """
    parts = [
        random_part(own, max(1, round(part * own.coords.shape[1])), draws)
        for own, part in ((step, share), (other, 1 - share))
    ]
    sections = [
        torch.zeros_like(part.coords[..., 0], dtype=torch.int64) if part.section is None else part.section
        for part in parts
    ]
    beyond = int(sections[0].max()) + 1
    sections[1] = torch.where(sections[1] >= 0, sections[1] + beyond, sections[1])
    features, coords = (torch.cat(pair, 1) for pair in zip(*((p.features, p.coords) for p in parts), strict=True))
    return Step(step.bags, features, coords, torch.cat(sections, 1))

"""The prediction for a part of a bag: instances are removed, and the model computes logit and contributions again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dasmil.attribution.account import Account
from dasmil.attribution.gradients import target_logit
from dasmil.data.restrict import pick
from dasmil.errors import InputError

if TYPE_CHECKING:
    from dasmil.models.base import MILModel
    from dasmil.types import Bag


@dataclass(frozen=True, eq=False)
class WhatIf:
    """The logit of the target with some instances removed, and what each instance contributes to it.

    contributions [n] in the order of the whole bag: 0 for removed instances, and
    contributions.sum() + bias + residual == logit.
    """

    target: int
    logit: float
    bias: float
    residual: float
    contributions: Tensor


def what_if(model: MILModel, bag: Bag, keep: Tensor, *, target: int | None = None) -> WhatIf:
    """The logit and its contributions for the kept instances alone, as if the others had never been in the bag.

    keep: [n] booleans, at least one True. target: the class to explain, as for ``explain``; for more than two classes
    the default is the class predicted for the *whole* bag, so that logits of different parts can be compared.
    """
    rows = _rows(bag, keep)
    if target is None and model.n_logits > 1:
        target = int(Account(model, bag).logits().argmax(-1))
    found = Account(model, pick(bag, rows)).explain(target=target, top=0, attention=False)
    contributions = torch.zeros(len(bag), dtype=found.contributions.dtype)
    contributions[rows] = found.contributions.detach().cpu()
    return WhatIf(found.target, found.logit, found.bias, found.residual, contributions)


def logit_of_part(model: MILModel, bag: Bag, keep: Tensor, target: int = 1) -> float:
    """The logit of a class for the kept instances alone, without contributions: one forward pass."""
    part = pick(bag, _rows(bag, keep))
    like = next(model.parameters())
    section = None if part.section is None else part.section.to(like.device)
    with torch.inference_mode():
        output = model.eval()(part.features.to(like), part.coords.to(like), section=section)
    return float(target_logit(output.logit, target, model.n_logits))


def _rows(bag: Bag, keep: Tensor) -> np.ndarray:
    """The numbers of the kept instances."""
    mask = np.asarray(keep)
    if mask.dtype != bool or mask.shape != (len(bag),):
        raise InputError(
            f"keep is {mask.dtype} of shape {mask.shape}, expected {len(bag)} booleans: True for every instance that "
            f"stays in bag {bag.bag_id!r}"
        )
    if not mask.any():
        raise InputError(f"keep removes all {len(bag)} instances of bag {bag.bag_id!r}: keep at least one")
    return np.flatnonzero(mask)

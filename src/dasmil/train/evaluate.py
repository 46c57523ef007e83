"""Logits and losses of bags under trained models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dasmil.models.base import MILModel
from dasmil.train.feed import Feed
from dasmil.types import Output

Forward = Callable[[Tensor, Tensor, Tensor | None], Output]


@torch.no_grad()
def bag_logits(forwards: Sequence[Forward], feed: Feed) -> NDArray[np.float64]:
    """Logits [runs, bags] (or [runs, bags, classes]); each bag is read once for all runs."""
    collected: NDArray[np.float64] | None = None
    for step in feed.batches():
        for run, forward in enumerate(forwards):
            logit = forward(step.features, step.coords, step.section).logit.double().cpu().numpy()
            if collected is None:
                collected = np.empty((len(forwards), len(feed.facts.ids), *logit.shape[1:]))
            collected[run, step.bags] = logit
    assert collected is not None
    return collected


def model_outputs(models: Sequence[MILModel], feed: Feed) -> NDArray[np.float64]:
    """Outputs of finished models [models, bags, outputs]; one logit is one output."""
    logits = model_logits(models, feed)
    return logits.reshape(*logits.shape[:2], -1)


def model_logits(models: Sequence[MILModel], feed: Feed) -> NDArray[np.float64]:
    """As bag_logits, of finished models (in evaluation mode, on the device of the feed)."""
    return bag_logits([lambda x, c, s, m=m: m.eval()(x, c, None, s) for m in models], feed)

"""Learning rate and weight decay of every run, and of the parameters that have their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dasmil.train.config import TrainingConfig
from dasmil.train.defaults import reading_weights
from dasmil.train.replicas import Replicas
from dasmil.train.state import RunSpec


def rates(
    replicas: Replicas, specs: Sequence[RunSpec], config: TrainingConfig, feature_sum: float
) -> tuple[Tensor, Tensor]:
    """Learning rate and weight decay [R, 1], or [R, P] when some parameters have their own.

    feature_sum: mean over the training instances of the sum of their absolute features.
    """
    flat, model = replicas.flat.detach(), replicas.model
    lr = torch.tensor([[s.lr] for s in specs], device=flat.device)
    decay = torch.tensor([[s.weight_decay] for s in specs], device=flat.device)
    own = None if config.distance_lr == "common" else config.distance_lr
    step = None if config.feature_step == "common" else config.feature_step
    distances = replicas.columns(model.distance_parameters()) if own else {}
    reading = replicas.columns(reading_weights(model)) if step else {}
    if not distances and not reading:
        return lr, decay
    lr, decay = lr.expand_as(flat).clone(), decay.expand_as(flat).clone()
    for where in distances.values():
        lr[:, where] *= (own or 1.0) * flat[:, where].abs().clamp_min(1e-3)
        decay[:, where] = 0.0
    for where in reading.values():
        # A step of Adam moves every weight by lr: outputs then move by lr times the sum of all features.
        lr[:, where] *= min(1.0, (step or 1.0) / max(feature_sum, 1e-12))
    return lr, decay

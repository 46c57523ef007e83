"""What training does when nothing is said: settings and model sizes that fit the kind of bags."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dasmil.models import MODELS
from dasmil.models.base import MILModel
from dasmil.nn.encoder import LinearReLU

STEPS, FEWEST_EPOCHS, MOST_EPOCHS = 2000, 20, 200
MOST_SURVIVAL_EPOCHS = 50  # censored times of a few dozen patients overfit soon
BAGS_PER_STEP, SURVIVAL_BAGS_PER_STEP = 4, 16
FEATURE_VECTORS: dict[str, Any] = {
    "accumulate": BAGS_PER_STEP, "clip": 1.0, "schedule": "hold-linear", "enough": 0.01,
}  # fmt: skip
PATCHES: dict[str, Any] = {"clip": 1.0, "schedule": "hold-linear", "augment": "patches"}
LEARNED_DISTANCES: dict[str, Any] = {"lr": 5e-3, "starts": 6}


def default_settings(
    model: str, feature_shape: Sequence[int], bags: int, given: Mapping[str, Any], task: str | None = None
) -> dict[str, Any]:
    """Settings for bags of feature vectors where the user gave none; digits keep those of the paper.

    Four bags a step, gradients clipped, a learning rate that falls in the last third, and 2,000 steps (20 epochs at
    least, 200 at most); with learned distances also a larger learning rate and six starts at different lengths.
    Times until an event say little each: sixteen bags a step, and 50 epochs at most.
    RGB patches: clipped, the same schedule, and turned and mirrored at random.
    """
    if len(feature_shape) != 1:
        settings = PATCHES if len(feature_shape) == 3 and feature_shape[0] == 3 else {}
        return {name: value for name, value in settings.items() if name not in given}
    settings = dict(FEATURE_VECTORS)
    if task == "survival":
        settings["accumulate"] = SURVIVAL_BAGS_PER_STEP
    if model in MODELS and MODELS[model].learns_lengths:
        settings |= LEARNED_DISTANCES
    steps = math.ceil(bags / int(given.get("accumulate") or settings["accumulate"]))
    most = MOST_SURVIVAL_EPOCHS if task == "survival" else MOST_EPOCHS
    settings["epochs"] = min(max(math.ceil(STEPS / max(1, steps)), FEWEST_EPOCHS), most)
    return {name: value for name, value in settings.items() if name not in given}


def default_options(
    model: str, feature_shape: Sequence[int], preset: str | None, given: Mapping[str, Any], task: str | None = None
) -> dict[str, Any]:
    """What the model says about feature vectors, where neither user nor preset chose an encoder.

    A risk or a number usually grows with how much there is of something, so instances are pooled by their mean; a class
    by its strongest instance, as in the paper.
    """
    if task is not None and freely_shaped(model, preset, given, "pooling"):
        given = {"pooling": "mean", **given}
    if len(feature_shape) != 1 or preset is not None or "encoder" in given or model not in MODELS:
        return dict(given)
    return {**MODELS[model].for_feature_vectors(given), **given}


def freely_shaped(model: str, preset: str | None, given: Mapping[str, Any], *names: str) -> bool:
    """Whether the model has these options and neither user nor preset gave one of them."""
    if preset is not None or model not in MODELS:
        return False
    return set(names) <= set(MODELS[model].schema()) and not set(names) & set(given)


def reading_weights(model: MILModel) -> list[str]:
    """Names of the weights of a trainable layer that reads feature vectors."""
    return ["encoder.linear.weight"] if isinstance(model.encoder, LinearReLU) else []


@torch.no_grad()
def fit_to_features(model: MILModel, feature_square: float) -> None:
    """Scale the untrained layer that reads feature vectors so that its outputs have variance one, whatever the
    encoder's own scale; torch's start gives a third of the features' mean square.
    """
    if isinstance(model.encoder, LinearReLU) and feature_square > 0:
        model.encoder.linear.weight.mul_(math.sqrt(3 / feature_square))

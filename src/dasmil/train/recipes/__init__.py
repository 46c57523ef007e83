"""Recipes: training settings for a set of models, one TOML file each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from dasmil.errors import InputError, unknown_name
from dasmil.models import MODELS


@dataclass(frozen=True)
class Recipe:
    """Settings of one model in one recipe: its preset if any, training settings, and model options beyond it."""

    name: str
    title: str
    preset: str | None
    training: dict[str, Any]
    options: dict[str, Any]


def list_recipes() -> list[str]:
    """Names that load_recipe takes."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def plain_settings(model: str, feature_shape: Sequence[int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of training and options of the model as in the paper, for features of any width and any unit.

    Feature vectors get the recipe for CAMELYON16, pictures that for the collages: one start from random weights, theta
    0.5 and beta 10 of the largest distance in the training bags. A model that the recipe lacks gets what all models
    have in common.
    """
    content = _content("camelyon16" if len(feature_shape) == 1 else "paper")
    own: Mapping[str, Any] = content["models"].get(model, {})
    training = {"starts": 1, "simple_starts": 0, "clip": None, "enough": 0.0, "augment": "none", **content["training"]}
    training |= {name: value for name, value in own.items() if name != "options"}
    reading = {"encoder": "linear-relu", "encoder_features": 512} if len(feature_shape) == 1 else {}
    return training, {**reading, **MODELS[model].presets.get(content["preset"], {}), **own.get("options", {})}


def _content(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def load_recipe(name: str, model: str) -> Recipe:
    """The recipe of that name for one model; settings of the model overrule the common ones."""
    if name not in list_recipes():
        raise unknown_name("recipe", name, list_recipes())
    content = _content(name)
    models = content["models"]
    if model not in models and "*" not in models:
        raise InputError(f"the recipe {name!r} has no settings for {model}; it has {', '.join(sorted(models))}")
    own = dict(models.get(model, models.get("*", {})))
    options = own.pop("options", {})
    return Recipe(name, content["title"], content.get("preset"), {**content["training"], **own}, options)

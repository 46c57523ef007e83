"""Settings of training and options of a model, from a recipe, settings and assignments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What fit needs: training settings, model options, and the preset they go on top of."""

    training: dict[str, Any]
    options: dict[str, Any]
    preset: str | None


def gather_settings(
    model: str,
    recipe: str | None,
    preset: str | None,
    settings: Mapping[str, Any],
    assignments: Mapping[str, Any],
    data_preset: str | None = None,
) -> Settings:
    """Recipe first, then settings of training, then assignments of either kind; names and values are checked.

    So wrong settings stop a command before it reads a file.

    preset: the one that was asked for; else it is the recipe's, else ``data_preset``, which came with the data.
    """
    from dasmil.errors import unknown_name
    from dasmil.models import MODELS
    from dasmil.train.config import TrainingConfig, training_config
    from dasmil.train.fit_auto import AUTO
    from dasmil.train.recipes import load_recipe

    if model == AUTO:
        return _of_auto(recipe, preset, settings, assignments)
    if model not in MODELS:
        raise unknown_name("model", model, [AUTO, *MODELS])
    training: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if recipe is not None:
        loaded = load_recipe(recipe, model)
        # A recipe says all that it does: the clipping that bags of features usually get is not added to it.
        training, options, preset = {"clip": None, **loaded.training}, dict(loaded.options), preset or loaded.preset
    elif preset is None and data_preset in MODELS[model].presets:  # the paper has not every model on every data
        preset = data_preset
    training |= settings
    if training.get("early_stopping"):
        training.setdefault("selection", "best-val")
    known = MODELS[model].schema()
    for name, value in assignments.items():
        if name in TrainingConfig.model_fields:
            training[name] = value
        elif name in known:
            options[name] = known[name].check(value)
        else:
            raise unknown_name(
                f"setting of training or option of {model}", name, [*TrainingConfig.model_fields, *known]
            )
    training_config(training)
    return Settings(training, options, preset)


def _of_auto(
    recipe: str | None, preset: str | None, settings: Mapping[str, Any], assignments: Mapping[str, Any]
) -> Settings:
    """Default training takes no recipe, preset or option of a single model."""
    from dasmil.errors import InputError
    from dasmil.train.fit_auto import auto_config

    for what, value in (("--recipe", recipe), ("--preset", preset)):
        if value is not None:
            raise InputError(f"{what} {value} is for a single model: give --model too, for example --model das-mil")
    training = {**settings, **assignments}
    auto_config(training)
    return Settings(training, {}, None)

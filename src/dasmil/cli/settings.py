"""Settings of training and options of a model, from a recipe, flags and --set name=value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chosen:
    """What fit needs: training settings, model options, and the preset they go on top of."""

    training: dict[str, Any]
    options: dict[str, Any]
    preset: str | None


def gather_settings(
    model: str,
    recipe: str | None,
    preset: str | None,
    settings: dict[str, Any],
    assignments: list[str],
    data_preset: str | None = None,
) -> Chosen:
    """Recipe first, then flags, then --set; every name is checked, with the nearest one suggested.

    preset: the one that was asked for; else it is the recipe's, else ``data_preset``, which came with the data.
    """
    from dasmil.errors import unknown_name
    from dasmil.models import MODELS
    from dasmil.paper.recipes import load_recipe
    from dasmil.train.config import TrainingConfig

    if model not in MODELS:
        raise unknown_name("model", model, MODELS)
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
    for assignment in assignments:
        name, value = _parse(assignment)
        if name in TrainingConfig.model_fields:
            training[name] = value
        elif name in known:
            options[name] = known[name].check(value)
        else:
            raise unknown_name(
                f"setting of training or option of {model}", name, [*TrainingConfig.model_fields, *known]
            )
    return Chosen(training, options, preset)


def _parse(assignment: str) -> tuple[str, Any]:
    """name=value; the value is a JSON number, list or true/false/null, else text."""
    import json

    from dasmil.errors import InputError, shown

    name, equals, text = assignment.partition("=")
    if not equals or not name:
        raise InputError(f"--set {shown(assignment)}: expected name=value, for example --set hidden=20")
    try:
        return name.strip().replace("-", "_"), json.loads(text)
    except (ValueError, RecursionError):
        return name.strip().replace("-", "_"), text

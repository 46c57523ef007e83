"""Recipes: training settings for a set of models, one TOML file each."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from dasmil.errors import InputError, unknown_name


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


def load_recipe(name: str, model: str) -> Recipe:
    """The recipe of that name for one model; settings of the model overrule the common ones."""
    if name not in list_recipes():
        raise unknown_name("recipe", name, list_recipes())
    content = tomllib.loads(resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    models = content["models"]
    if model not in models and "*" not in models:
        raise InputError(f"the recipe {name!r} has no settings for {model}; it has {', '.join(sorted(models))}")
    own = dict(models.get(model, models.get("*", {})))
    options = own.pop("options", {})
    return Recipe(name, content["title"], content.get("preset"), {**content["training"], **own}, options)

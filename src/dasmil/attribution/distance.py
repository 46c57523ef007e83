"""The learned distance: phi(delta) of every head, its midpoint and width as lengths, over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dasmil.errors import InputError
from dasmil.models.base import MILModel
from dasmil.models.slide_transformer import Block
from dasmil.nn import DistanceAwareAttention
from dasmil.ops.das_attention.phi import PHI
from dasmil.types import Unit


@dataclass(frozen=True)
class LearnedDistance:
    """One head of one layer over all seeds: where phi changes and over which width, in `unit`, one value a seed."""

    layer: int
    head: int
    unit: Unit
    midpoints: tuple[float, ...]
    widths: tuple[float, ...]

    @staticmethod
    def spread(values: Sequence[float]) -> tuple[float, float | None]:
        """Mean and standard deviation (None for a single seed)."""
        return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def learned_distances(models: Sequence[MILModel]) -> list[LearnedDistance]:
    """The table of learned distances; models are seeds of one configuration."""
    tables = [model.learned_distances() for model in models]
    if not tables or not tables[0]:
        name = models[0].name if models else "no model"
        raise InputError(
            f"{name} has no learned distance: only das-mil with at least one embedding (k, q, v) learns one"
        )
    found = []
    for rows in zip(*tables, strict=True):
        first = rows[0]
        found.append(
            LearnedDistance(
                layer=first["layer"],
                head=first["head"],
                unit=first["unit"],
                midpoints=tuple(row["midpoint"] for row in rows),
                widths=tuple(row["width"] for row in rows),
            )
        )
    return found


def learned_biases(model: MILModel) -> list[dict[str, Any]]:
    """Rows {layer, head, bias, slope | length | table, unit}: what each head subtracts with the distance.

    A slope is per unit of the coordinates, a length in it; empty for models without a bias.
    """
    rows: list[dict[str, Any]] = []
    layers = [module for module in model.modules() if isinstance(module, DistanceAwareAttention | Block)]
    for number, layer in enumerate(layers):
        found = layer.learned_biases(model.distance_scale) if isinstance(layer, Block) else layer.learned_biases()
        rows += [{"layer": number, **row, "unit": model.unit} for row in found]
    return rows


def phi_values(row: dict, scale: float, kind: str, distances: np.ndarray) -> np.ndarray:
    """phi at distances (in the unit) for one row of `model.learned_distances()`."""
    return PHI[kind](torch.from_numpy((distances / scale - row["theta"]) * row["beta"])).numpy()

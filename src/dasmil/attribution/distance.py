"""The learned distance: phi(delta) of every head, its midpoint and width as lengths, over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dasmil.errors import InputError
from dasmil.models.base import MILModel
from dasmil.ops.das_attention.phi import PHI
from dasmil.types import Unit
from dasmil.vocabulary import UNIT_SYMBOL


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
    by_head: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for model in models:
        for row in model.learned_distances():
            by_head.setdefault((row["layer"], row["head"]), []).append(row)
    if not by_head:
        name = models[0].name if models else "no model"
        if models and models[0].distance_parameters():
            raise InputError(
                f"{name} has no learned distance here: it follows a rule without one, of mean features or of the share "
                "of one type of instances"
            )
        raise InputError(
            f"{name} has no learned distance: only das-mil with at least one embedding (k, q, v) learns one"
        )
    return [
        LearnedDistance(
            layer=layer,
            head=head,
            unit=rows[0]["unit"],
            midpoints=tuple(row["midpoint"] for row in rows),
            widths=tuple(row["width"] for row in rows),
        )
        for (layer, head), rows in sorted(by_head.items())
    ]


def told_distances(biases: Sequence[Mapping[str, Any]], options: Mapping[str, Any], unit: str) -> list[str]:
    """What a model with a bias or a radius knows of distance, as sentences with lengths; empty for models without.

    biases: rows of `model.learned_biases()`, of one seed or of several; options: the model's configuration.
    """
    symbol = UNIT_SYMBOL.get(unit, unit)
    texts = []
    for layer in sorted({row["layer"] for row in biases}):
        rows = [row for row in biases if row["layer"] == layer]
        where = f"Layer {layer}: a" if len({row["layer"] for row in biases}) > 1 else "A"
        kind = rows[0]["bias"]
        if kind == "bins":
            texts.append(where + _steps(rows, float(options.get("distance_scale", 1.0)), symbol))
        elif kind == "linear":
            halves = [math.log(2) / row["slope"] for row in rows if row["slope"] > 0]
            rest = len(rows) - len(halves)
            if halves:
                texts.append(f"{where} weight halves every {_span(halves)} {symbol} of distance{_heads(rows)}.")
            if rest:
                texts.append(f"{where} weight does not fall with the distance in {rest} of {len(rows)} heads.")
        else:
            factor = math.sqrt(2 * math.log(2)) if kind == "gaussian" else 1.0
            lengths = [row["length"] for row in rows]
            at = _span([length * factor for length in lengths])
            texts.append(
                f"{where} weight is half as large at {at} {symbol} ({kind}, length {_span(lengths)} {symbol})"
                f"{_heads(rows)}."
            )
    if options.get("radius") is not None:
        texts.append(f"Instances more than {options['radius']:,.6g} {symbol} apart do not see each other.")
    return texts


def _heads(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = len({row["head"] for row in rows})
    return (
        f", from head to head and seed to seed ({len(rows)} in all)"
        if len(rows) > heads > 1
        else (f" ({heads} heads)" if heads > 1 else "")
    )


def _span(values: Sequence[float]) -> str:
    low, high = _digits(min(values)), _digits(max(values))
    return low if low == high else f"{low} to {high}"


def _digits(value: float) -> str:
    """Three digits that count, without an exponent."""
    return f"{float(f'{value:.3g}'):,.9g}"


def _steps(rows: Sequence[Mapping[str, Any]], reach: float, symbol: str) -> str:
    """Where a bias by table is highest and lowest: a weight there against one at the lowest."""
    tables = np.array([row["table"] for row in rows]).mean(0)
    step = reach / len(tables)
    best, worst = int(tables.argmax()), int(tables.argmin())
    ratio = math.exp(min(tables[best] - tables[worst], 700.0))
    return (
        f" weight at {_digits(best * step)} to {_digits((best + 1) * step)} {symbol} is {_digits(ratio)} times that "
        f"at {_digits(worst * step)} to {_digits((worst + 1) * step)} {symbol}{_heads(rows)}."
    )


def phi_values(row: dict, scale: float, kind: str, distances: np.ndarray) -> np.ndarray:
    """phi at distances (in the unit) for one row of `model.learned_distances()`."""
    return PHI[kind](torch.from_numpy((distances / scale - row["theta"]) * row["beta"])).numpy()

"""An account in the unit of what is told: a number in its own unit, not in standard deviations."""

from __future__ import annotations

from dataclasses import replace

from dasmil.types import Explanation
from dasmil.vocabulary import Meaning

OF_THE_OUTPUT = ("contribution", "pairs", "support", "distance", "taken")
"""Scores that are parts of the output; attention is none."""


def in_unit(explanation: Explanation, meaning: Meaning) -> Explanation:
    """The same account with every part in the unit of the quantity; it still sums up."""
    scale = meaning.scale
    if scale == 1.0 and meaning.shift == 0.0:
        return explanation
    distance = explanation.distance_part
    return replace(
        explanation,
        logit=meaning.shift + scale * explanation.logit,
        bias=meaning.shift + scale * explanation.bias,
        residual=scale * explanation.residual,
        contributions=scale * explanation.contributions,
        distance_part=None if distance is None else scale * distance,
        pairs=tuple(
            replace(pair, contribution=scale * pair.contribution, distance_part=scale * pair.distance_part)
            for pair in explanation.pairs
        ),
        scores={name: scale * v if name in OF_THE_OUTPUT else v for name, v in explanation.scores.items()},
        sums={
            name: tuple(replace(part, contribution=scale * part.contribution) for part in parts)
            for name, parts in explanation.sums.items()
        },
    )

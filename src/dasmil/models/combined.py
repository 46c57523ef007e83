"""Several models whose logits are added with weights: what default training (``--model auto``) gives."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from dasmil.errors import InputError, shown
from dasmil.models.base import CommonOptions, MILModel
from dasmil.nn.encoder import Identity
from dasmil.types import Output

MOST_MEMBERS = 100


class ModelSum(MILModel):
    """logit = b + sum_m w_m logit_m with weights w_m >= 0: every part of a member's logit counts w_m times.

    members: JSON text, a list of {"model": name, "options": {...}, "weight": w}; `dasmil.fit` writes it. Without
    members the model says b of every bag.
    """

    name = "auto"
    paper = "van der Laan, Polley and Hubbard 2007, Super learner"
    stackable = False

    def __init__(self, *, members: str = "[]", **common: Unpack[CommonOptions]) -> None:
        from dasmil.models import STORED

        super().__init__(**common)
        if not isinstance(self.encoder, Identity):
            raise InputError("the model auto reads features as they are: leave encoder out, its members have their own")
        self.parts = nn.ModuleList()
        self.weights: list[float] = []
        for member in _members(members):
            name, options, weight = member["model"], member["options"], member["weight"]
            if name not in STORED or name == self.name:
                raise InputError(f"a member of auto is named {shown(name)}, which is no model that it can hold")
            self.parts.append(STORED[name](**options))
            self.weights.append(float(weight))
        self.bias = nn.Parameter(torch.zeros(self.n_logits))
        self.position = "relative" if any(part.position != "none" for part in self.parts) else "none"  # pyright: ignore

    @property
    def members(self) -> list[tuple[float, MILModel]]:
        """Every member with its weight."""
        return list(zip(self.weights, self.parts, strict=True))  # pyright: ignore[reportReturnType]

    def forward(
        self, features: Tensor, coords: Tensor, mask: Tensor | None = None, section: Tensor | None = None
    ) -> Output:
        logit = self.bias[0] if self.n_logits == 1 else self.bias
        features = torch.as_tensor(features)
        for weight, part in self.members:
            logit = logit + weight * part(features, coords, mask, section).logit
        lead = features.shape[: features.ndim - 1 - len(self.encoder.in_shape)]
        return Output(logit.expand(*lead, *logit.shape[len(lead) :]) if not self.weights else logit)

    @staticmethod
    def of(members: Sequence[tuple[float, MILModel]], bias: Tensor, common: Mapping[str, Any]) -> ModelSum:
        """The members with these weights, as one model."""
        text = json.dumps([{"model": m.name, "options": m.config, "weight": w} for w, m in members])
        made = ModelSum(members=text, **common)
        for part, (_, member) in zip(made.parts, members, strict=True):
            part.load_state_dict(member.state_dict())
        with torch.no_grad():
            made.bias.copy_(bias)
        return made.eval()


def _members(text: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(text)
        good = isinstance(found, list) and len(found) <= MOST_MEMBERS
        for member in found if good else ():
            good = good and set(member) == {"model", "options", "weight"} and isinstance(member["options"], dict)
            good = good and isinstance(member["weight"], int | float) and 0 <= member["weight"] < 1e9
    except (ValueError, TypeError, RecursionError):
        good, found = False, []
    if not good:
        raise InputError(f"members is {shown(text, 60)}, expected a JSON list of model, options and weight")
    return found

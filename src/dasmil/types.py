"""The types that rooms exchange: a bag goes in, an output and its explanation come out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NewType, get_args

import numpy as np
import torch
from torch import Tensor

from dasmil.errors import DataError

Unit = Literal["um", "px"]
"""What a coordinate counts: micrometres, or pixels of the picture at full resolution (level 0)."""

Micrometers = NewType("Micrometers", float)
Level0Pixels = NewType("Level0Pixels", float)

ArrayLike = Tensor | np.ndarray


@dataclass(frozen=True, eq=False)
class Bag:
    """Instances with positions under one label, validated on construction.

    features: [n, *f]; coords: [n, 2] or [n, 3], instance *centres*, kept as float32; unit: of the coordinates.
    section: [n] integers; a pair of instances in different sections has no distance.
    instance_labels: [n] integers (what each instance is; metadata "instance_label_names" may name them);
    key_instances: [n] booleans (what made the bag positive); instance_ids: the user's own name of each instance.
    NumPy arrays are accepted and kept as tensors.
    """

    features: Tensor
    coords: Tensor
    unit: Unit
    bag_id: str
    label: int | None = None
    patient_id: str | None = None
    instance_labels: Tensor | None = None
    key_instances: Tensor | None = None
    section: Tensor | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    instance_ids: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.bag_id:
            raise DataError("a bag has an empty bag_id: give every bag a name, it is how predictions are matched")
        if self.unit not in get_args(Unit):
            raise self._error(f"unit is {self.unit!r}, expected 'um' (micrometres) or 'px' (level-0 pixels)")
        for name in ("features", "coords", "instance_labels", "key_instances", "section"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _as_tensor(value))
        n = self.features.shape[0] if self.features.ndim else 0
        if self.features.ndim < 2 or n == 0:
            raise self._error(
                f"features have shape {tuple(self.features.shape)}, expected [n, ...] with at least one instance"
            )
        if self.coords.ndim != 2 or self.coords.shape[1] not in (2, 3):
            raise self._error(f"coords have shape {tuple(self.coords.shape)}, expected [{n}, 2] or [{n}, 3]")
        for name in ("coords", "instance_labels", "key_instances", "section"):
            value = getattr(self, name)
            if value is not None and value.shape[0] != n:
                raise self._error(f"{n} rows of features but {value.shape[0]} of {name}: they must match one to one")
        if self.instance_ids is not None:
            object.__setattr__(self, "instance_ids", tuple(map(str, self.instance_ids)))
            if len(self.instance_ids) != n:
                raise self._error(f"{n} rows of features but {len(self.instance_ids)} instance_ids: give one for each")
        coords = self.coords.to(torch.float32)
        bad = int((~torch.isfinite(coords)).any(dim=1).sum())
        if bad:
            raise self._error(f"{bad} of {n} instances have NaN or infinite coordinates; remove or repair them")
        object.__setattr__(self, "coords", coords)
        if self.section is not None:
            object.__setattr__(self, "section", self.section.to(torch.int64))
        if self.key_instances is not None:
            object.__setattr__(self, "key_instances", self.key_instances.to(torch.bool))
        if self.label is not None:
            if self.label != int(self.label) or self.label < 0:
                raise self._error(f"label is {self.label!r}, expected a class number 0, 1, ... or None")
            object.__setattr__(self, "label", int(self.label))

    def _error(self, message: str) -> DataError:
        return DataError(f"bag {self.bag_id!r}: {message}")

    def __len__(self) -> int:
        return self.features.shape[0]


def _as_tensor(value: ArrayLike) -> Tensor:
    return value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))


@dataclass(frozen=True, eq=False)
class Output:
    """What a model says about a bag, before any sigmoid or softmax.

    logit: [*batch] for two classes, [*batch, classes] for more; aux_loss: [*batch], added to the bag loss;
    instance_scores: [*batch, n], the model's own weight of each instance where it has one (for example attention).
    side_logits: [*batch, s] (or [*batch, s, classes]), s further logits of the same bag, each with its own bag loss.
    """

    logit: Tensor
    aux_loss: Tensor | None = None
    instance_scores: Tensor | None = None
    side_logits: Tensor | None = None


@dataclass(frozen=True)
class Pair:
    """One instance looking at another: what row i of the attention took from instance j, as a part of the logit.

    distance_part: how much of the contribution came from the distance embedding of the values (b^V);
    weight: the attention that i gives to j; distance: in the bag's unit, None across sections; phi: None where the
    layer has none.
    """

    i: int
    j: int
    head: int
    contribution: float
    distance_part: float
    weight: float
    distance: float | None
    phi: float | None


@dataclass(frozen=True)
class PairSum:
    """The contributions of many pairs, added up: of all pairs between two kinds, two places, or at one distance.

    between: what the pairs have in common, in words; places: centres of the two places in the bag's unit.
    """

    between: tuple[str, ...]
    contribution: float
    places: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, eq=False)
class Explanation:
    """Which instances and pairs, at which distances, made a logit: contributions.sum() + bias + residual == logit.

    target: the class whose logit is explained (1 where the model has a single logit);
    contributions: [n], half of each pair contribution to each of its two ends (models without pairs: of each instance);
    distance_part: [n], the part of them that came from the distance embeddings of the values;
    distance_share: sum of the absolute distance parts over the sum of all absolute parts, pair by pair, 0 to 1;
    pairs: strongest first, of the last attention layer; scores: named instance scores [n]; method: how it was computed.
    sums: all pairs of the last layer added up by "distance", "types" and "neighbourhoods", where these are known.
    bias: what the classifier (or, for integrated gradients, the baseline) says without any instance;
    residual: rounding for an exact split, the error of the integration for integrated gradients.
    """

    bag_id: str
    unit: Unit
    method: str
    target: int
    logit: float
    bias: float
    residual: float
    contributions: Tensor
    distance_part: Tensor | None = None
    distance_share: float | None = None
    pairs: tuple[Pair, ...] = ()
    scores: dict[str, Tensor] = field(default_factory=dict)
    sums: dict[str, tuple[PairSum, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.contributions.shape[0]

"""The types that rooms exchange: a bag goes in, an output and its explanation come out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from dasmil.errors import DataError, InputError, is_text, shown

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

Unit = Literal["um", "px"]
"""What a coordinate counts: micrometres, or pixels of the picture at full resolution (level 0)."""

ArrayLike = Tensor | np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class Bag:
    """Instances with positions under one label, validated on construction.

    features: [n, *f]; coords: [n, 2] or [n, 3], instance *centres*, kept as float32; unit: of the coordinates.
    section: [n] integers; a pair of instances in different sections has no distance.
    instance_labels: [n] integers (what each instance is; metadata "instance_label_names" may name them);
    key_instances: [n] booleans (what made the bag positive); instance_ids: the user's own name of each instance.
    label: the class; targets: what is asked of the bag where it is no single class (a number, a time and an event,
    several at once), by name, None or NaN where it is missing.
    Pictures are [n, 3, h, w] (RGB pixels, uint8) or [n, 1, 28, 28] (digits); [n, h, w, 3] of uint8 is turned into it.
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
    targets: Mapping[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_names()
        for name in ("features", "coords", "instance_labels", "key_instances", "section"):
            value = getattr(self, name)
            if value is not None or name in ("features", "coords"):
                try:
                    object.__setattr__(self, name, plain_tensor(name, value))
                except DataError as error:
                    raise self._error(str(error)) from None
        n = self._check_features()
        if self.coords.ndim != 2 or self.coords.shape[1] not in (2, 3):
            raise self._error(f"coords have shape {tuple(self.coords.shape)}, expected [{n}, 2] or [{n}, 3]")
        self._check_rows(n)
        coords = self.coords.to(torch.float32)
        bad = int((~torch.isfinite(coords)).any(dim=1).sum())
        if bad:
            raise self._error(f"{bad} of {n} instances have NaN or infinite coordinates; remove or repair them")
        object.__setattr__(self, "coords", coords)
        for name in ("section", "instance_labels"):
            object.__setattr__(self, name, self._whole(name, getattr(self, name)))
        if self.key_instances is not None:
            if not bool(((self.key_instances == 0) | (self.key_instances == 1)).all()):
                raise self._error("key_instances hold values other than 0 and 1")
            object.__setattr__(self, "key_instances", self.key_instances == 1)
        if self.label is not None:
            label = self.label.item() if isinstance(self.label, Tensor) and self.label.numel() == 1 else self.label
            if not isinstance(label, int | float | np.number) or not 0 <= label < 2**31 or label != int(label):
                raise self._error(f"label is {shown(label)}, expected a class number 0, 1, ... or None")
            object.__setattr__(self, "label", int(label))
        object.__setattr__(self, "targets", self._numbers())

    def _check_names(self) -> None:
        if not isinstance(self.bag_id, str) or not self.bag_id:
            found = "an empty bag_id" if self.bag_id == "" else f"the bag_id {shown(self.bag_id)}"
            raise DataError(f"a bag has {found}: give every bag a name (text), it is how predictions are matched")
        if self.unit not in get_args(Unit):
            raise self._error(f"unit is {shown(self.unit)}, expected 'um' (micrometres) or 'px' (level-0 pixels)")
        if self.patient_id is not None and not isinstance(self.patient_id, str):
            raise self._error(f"patient_id is {shown(self.patient_id)}, expected text or None")
        for name in filter(None, (self.bag_id, self.patient_id)):
            if not is_text(name):
                raise self._error(f"{shown(name)} is not UTF-8 text, so no table can hold it: give another name")

    def _check_features(self) -> int:
        """The number of instances."""
        if self.features.dtype == torch.uint8 and channels_last(self.features.shape):
            object.__setattr__(self, "features", self.features.permute(0, 3, 1, 2).contiguous())
        shape = tuple(self.features.shape)
        if len(shape) < 2 or shape[0] == 0:
            raise self._error(f"features have shape {shape}, expected [n, ...] with at least one instance")
        if 0 in shape:
            raise self._error(f"features have shape {shape}: an instance has no numbers")
        return shape[0]

    def _numbers(self) -> dict[str, float | None]:
        if not isinstance(self.targets, Mapping):
            raise self._error(f"targets are {shown(type(self.targets).__name__)}, expected numbers by name")
        found: dict[str, float | None] = {}
        for name, value in dict(self.targets).items():
            number: Any = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
            if not isinstance(name, str) or not (number is None or isinstance(number, int | float | np.number)):
                raise self._error(f"target {shown(name)} is {shown(value)}, expected a number or None under a name")
            number = float("nan") if number is None else float(number)
            if np.isinf(number):
                raise self._error(f"target {shown(name)} is infinite, expected a number")
            found[name] = None if np.isnan(number) else number
        return found

    def _check_rows(self, n: int) -> None:
        for name in ("coords", "instance_labels", "key_instances", "section"):
            value = getattr(self, name)
            rows = -1 if value is None or not value.ndim else value.shape[0]
            if value is not None and rows != n:
                raise self._error(f"{n} rows of features but {max(rows, 0)} of {name}: they must match one to one")
            if value is not None and name != "coords" and value.ndim != 1:
                raise self._error(f"{name} has shape {tuple(value.shape)}, expected [{n}]: one value per instance")
        if self.instance_ids is not None:
            if isinstance(self.instance_ids, str) or not isinstance(self.instance_ids, Iterable):
                raise self._error(f"instance_ids is {shown(self.instance_ids)}, expected one name for each instance")
            object.__setattr__(self, "instance_ids", tuple(map(str, self.instance_ids)))
            if len(self.instance_ids) != n:
                raise self._error(f"{n} rows of features but {len(self.instance_ids)} instance_ids: give one for each")

    def _whole(self, name: str, value: Tensor | None) -> Tensor | None:
        if value is not None and value.is_floating_point() and not bool((value == value.round()).all()):
            raise self._error(f"{name} holds fractions or NaN, expected whole numbers")
        return None if value is None else value.to(torch.int64)

    def need_finite_features(self) -> None:
        """One clear error for features that no model can use; looked for when they are used, not when a bag is made."""
        if not torch.isfinite(self.features).all():
            bad = int((~torch.isfinite(self.features)).reshape(len(self), -1).any(1).sum())
            raise self._error(
                f"{bad} of {len(self)} instances have NaN or infinite features; remove them or extract the slide again "
                "(dasmil doctor lists all such bags)"
            )

    def _error(self, message: str) -> DataError:
        return DataError(f"bag {shown(self.bag_id)}: {message}")

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.features.shape[1:]))
        label = "" if self.label is None else f", label {self.label}"
        return f"Bag({self.bag_id!r}, {len(self):,} instances of {shape} {self.features.dtype}, {self.unit}{label})"

    def __len__(self) -> int:
        return self.features.shape[0]

    @property
    def pixels(self) -> bool:
        """Whether the instances are pictures that are kept as they were read: uint8 [n, 3, h, w]."""
        return self.features.dtype == torch.uint8 and self.features.ndim == 4


def channels_last(shape: Sequence[int]) -> bool:
    """Whether pixels of this shape are [n, h, w, 3]; [n, 3, h, w] is taken where both could be."""
    return len(shape) == 4 and shape[3] == 3 and shape[1] != 3


def plain_tensor(name: str, value: Any) -> Tensor:
    """A plain tensor of numbers from a tensor, a NumPy array or (nested) lists, in a type that PyTorch knows."""
    if not isinstance(value, Tensor):
        value = _from_numpy(name, value)
    if value.is_nested or value.layout != torch.strided or value.is_quantized or value.is_complex():
        kind = "nested" if value.is_nested else f"{value.dtype}, {value.layout}"
        raise DataError(f"{name} are {kind}, expected a plain tensor of real numbers")
    if value.is_meta:
        raise DataError(f"{name} are a meta tensor, which holds no numbers; give the tensor itself")
    return value


def _from_numpy(name: str, value: Any) -> Tensor:
    if isinstance(value, np.ma.MaskedArray):
        if np.ma.is_masked(value):
            count = int(np.ma.getmaskarray(value).sum())
            raise DataError(f"{name} are masked ({count} values): fill these values or remove their instances")
        value = value.data
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):  # lists of lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "fiub":
        found = type(value).__name__ if array.dtype.kind == "O" else f"{type(value).__name__} of {array.dtype}"
        raise DataError(f"{name} are {found}, expected numbers: a tensor or an array of one shape")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    elif array.dtype.kind == "u" and array.dtype.itemsize > 1:
        if array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise DataError(f"{name} hold {array.max()}, expected numbers below 2^63")
        array = array.astype(np.int64)
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 for stride in array.strides):  # PyTorch has none, not even of arrays with a single element
        array = array.copy()
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))


@dataclass(frozen=True, eq=False)
class Output:
    """What a model says about a bag, before any sigmoid or softmax.

    logit: [*batch] for two classes, [*batch, classes] for more; aux_loss: [*batch], added to the bag loss;
    instance_scores: [*batch, n], the model's own weight of each instance where it has one (for example attention).
    side_logits: [*batch, s] (or [*batch, s, classes]), s further logits of the same bag, each with its own bag loss.
    label_losses: [*batch, classes], a loss for every class that the label could be; the one of the label is added.
    bag_weight, side_weight: of the bag loss of the logit, and of that of each side logit, in the sum.
    """

    logit: Tensor
    aux_loss: Tensor | None = None
    instance_scores: Tensor | None = None
    side_logits: Tensor | None = None
    label_losses: Tensor | None = None
    bag_weight: float = 1.0
    side_weight: float = 1.0


@dataclass(frozen=True)
class Pair:
    """One instance looking at another: what row i of the attention took from instance j, as a part of the logit.

    distance_part: how much of the contribution came from the distance embedding of the values (b^V);
    weight: the attention that i gives to j; distance: in the bag's unit, None across sections; phi: None where the
    layer has none, or one that is the same at every distance of the bag.
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


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Which instances and pairs, at which distances, made a logit: contributions.sum() + bias + residual == logit.

    target: the class whose logit is explained (1 where the model has a single logit);
    contributions: [n], half of each pair contribution to each of its two ends (models without pairs: of each instance);
    distance_part: [n], the part of them that came from the distance embeddings of the values;
    distance_part and distance_share are 0 where phi is the same at every distance of the bag;
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

    def __repr__(self) -> str:
        return (
            f"Explanation({self.bag_id!r}, {len(self):,} instances, {self.method}, class {self.target}, logit "
            f"{self.logit:+.3f} = {self.bias:+.3f} {float(self.contributions.double().sum()):+.3f}; "
            f"scores: {', '.join(self.scores)})"
        )

    def __len__(self) -> int:
        return self.contributions.shape[0]

    def plot(self, bag: Bag, score: str = "contribution", slide: str | Path | None = None) -> Figure:
        """The map of a score of this bag as a matplotlib figure, see ``dasmil.plot_map``."""
        import dasmil

        return dasmil.plot_map(bag, self, score, slide)


def need_bags(bags: Any) -> None:
    """Refuse what is no sequence of bags; each but the first is looked at when it is read."""
    need_sequence(bags)
    if not len(bags):
        raise InputError("there are no bags: expected at least one")
    need_bag(bags[0], 0)


def need_sequence(bags: Any) -> None:
    """Refuse what cannot be a sequence of bags, without reading any."""
    if isinstance(bags, str | bytes | dict | Bag) or not (hasattr(bags, "__len__") and hasattr(bags, "__getitem__")):
        raise InputError(f"bags are {shown(type(bags).__name__)}, expected a sequence of dasmil.Bag")
    if hasattr(bags, "iloc"):  # its [0] is the row that is called 0
        raise InputError("bags are a pandas object, which counts by its own index: give a list, such as bags.tolist()")


def need_bag(bag: Any, index: object) -> Bag:
    """A bag as it is; anything else is refused."""
    if not isinstance(bag, Bag):
        raise InputError(f"number {index} of the bags is {shown(type(bag).__name__)}, expected dasmil.Bag")
    return bag

"""The door of every model: what a user passes becomes tensors that its layers can use, or one clear message."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dasmil.errors import DataError, InputError
from dasmil.types import plain_tensor


class Inputs(NamedTuple):
    """features [*batch, n, *f], coords [*batch, n, 2 or 3], mask [*batch, n] booleans, section [*batch, n] integers."""

    features: Tensor
    coords: Tensor
    mask: Tensor | None
    section: Tensor | None


def take_inputs(
    model: str, shape: tuple[int, ...], like: Tensor, features: Any, coords: Any, mask: Any, section: Any
) -> Inputs:
    """Tensors of the model's device and number type; lists, NumPy arrays and other numbers are converted.

    shape: of one instance; like: a parameter of the model.
    """
    features, coords = _tensor("features", features), _tensor("coords", coords)
    _check_shapes(model, shape, features, coords)
    lead = features.shape[: features.ndim - len(shape)]
    mask = None if mask is None else _mask(_tensor("mask", mask), lead)
    section = None if section is None else _section(_tensor("section", section), lead)
    for name, value in (("features", features), ("coords", coords), ("mask", mask), ("section", section)):
        if value is not None and value.device != like.device:
            raise InputError(
                f"{name} are on {value.device}, but this {model} is on {like.device}: move one with .to(...)"
            )
    if not (features.dtype == torch.uint8 and len(shape) == 3):  # pixels are converted piece by piece
        features = features.to(like.dtype)
    coords = coords if coords.is_floating_point() else coords.to(like.dtype)
    coords = _placed(coords, mask)
    return Inputs(features, coords.to(torch.promote_types(coords.dtype, like.dtype)), mask, section)


def _tensor(name: str, value: Any) -> Tensor:
    try:
        return plain_tensor(name, value)
    except DataError as error:
        raise InputError(str(error)) from None


def _check_shapes(model: str, shape: tuple[int, ...], features: Tensor, coords: Tensor) -> None:
    if features.ndim <= len(shape) or tuple(features.shape[-len(shape) :]) != shape:
        raise InputError(
            f"features have shape {tuple(features.shape)}, but this {model} was made for instances of shape "
            f"{shape}: expected [*batch, n, {', '.join(map(str, shape))}]"
        )
    lead = features.shape[: -len(shape)]
    if 0 in lead:
        raise InputError("the bag is empty: features have no instances")
    if coords.shape[:-1] != lead or coords.shape[-1] not in (2, 3):
        raise InputError(f"coords have shape {tuple(coords.shape)}, expected {(*lead, 2)} to match the features")


def _mask(mask: Tensor, lead: torch.Size) -> Tensor:
    """True for real instances; numbers are taken where they are 0 and 1."""
    if mask.shape != lead:
        raise InputError(f"mask has shape {tuple(mask.shape)}, expected {tuple(lead)} to match the features")
    if mask.dtype != torch.bool:
        if not bool(((mask == 0) | (mask == 1)).all()):
            raise InputError("mask holds values other than 0 and 1, expected True for an instance, False for padding")
        mask = mask == 1
    if _readable(mask) and not bool(mask.any(-1).all()):
        raise InputError("mask leaves a bag without any instance, expected at least one True in every bag")
    return mask


def _section(section: Tensor, lead: torch.Size) -> Tensor:
    if section.shape != lead:
        raise InputError(f"section has shape {tuple(section.shape)}, expected {tuple(lead)} to match the features")
    if section.is_floating_point() and not bool((section == section.round()).all()):
        raise InputError("section holds fractions or NaN, expected whole numbers: one for each piece of tissue")
    return section.to(torch.int64)


def _placed(coords: Tensor, mask: Tensor | None) -> Tensor:
    """Coordinates of which every real instance has its own; what padding holds does not matter and becomes zero."""
    if not _readable(coords) or bool(coords.isfinite().all()):
        return coords
    lost = ~coords.isfinite().all(-1)
    n = int((lost if mask is None else lost & mask).sum())
    if n:
        raise InputError(f"{n} of {lost.numel()} instances have NaN or infinite coordinates; remove or repair them")
    return coords.masked_fill(lost.unsqueeze(-1), 0)


def _readable(tensor: Tensor) -> bool:
    """Whether values can be looked at: not on the meta device, not while a graph is traced."""
    return not tensor.is_meta and not torch.compiler.is_compiling()

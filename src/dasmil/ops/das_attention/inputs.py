"""Checks of the operator's arguments: each finds one mistake and says what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from dasmil.errors import InputError, unknown_name
from dasmil.ops.das_attention.bias import BIASES, LENGTHS
from dasmil.ops.das_attention.operands import FLOATING, Operands

REQUIRED = ("query", "key", "value", "coords")
LARGEST, SINGLE = sys.float_info.max, torch.finfo(torch.float32)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check_shapes(x: Operands) -> None:
    """Types, shapes, dtypes and devices: only attributes are read, no element is."""
    given = list(zip(x._fields, x))
    for name, tensor in given:
        if not isinstance(tensor, Tensor) and (tensor is not None or name in REQUIRED):
            raise _no_tensor(name, tensor)
    for name, tensor in given:
        if tensor is not None and tensor.layout != torch.strided:
            raise InputError(f"{name} is a tensor of layout {tensor.layout}, expected a plain one: use .to_dense()")
        if tensor is not None and name in FLOATING and tensor.dtype not in FLOATS:
            raise InputError(f"{name} has dtype {tensor.dtype}, expected a floating dtype; convert it with .float()")
    _check_bag(x)
    _check_distance_parameters(x)
    _check_marks(x)
    device = x.query.device
    for name, tensor in given:
        if tensor is not None and tensor.device != device:
            raise InputError(f"{name} is on {tensor.device} but query is on {device}; move it with .to(query.device)")


def _check_bag(x: Operands) -> None:
    """Queries, keys, values and where the instances are."""
    query, key, value, coords = x.query, x.key, x.value, x.coords
    shape = query.shape
    if len(shape) < 3:
        raise InputError(f"query has shape {_show(shape)}, expected [..., heads, n, d]; add a dimension for one head")
    n = shape[-2]
    if n == 0:
        raise InputError("the bag is empty: query has no instances; leave such bags out")
    if shape[-1] == 0:
        raise InputError(f"query has shape {_show(shape)}, expected at least one number for each instance")
    if key.shape != shape:
        raise InputError(f"key has shape {_show(key.shape)}, expected that of query: {_show(shape)}")
    if value.ndim != len(shape) or value.shape[:-1] != shape[:-1]:
        expected = _show([*shape[:-2], n, "o"])
        raise InputError(f"value has shape {_show(value.shape)}, expected {expected} as query has it")
    if value.shape[-1] == 0:
        raise InputError(f"value has shape {_show(value.shape)}, expected at least one number for each instance")
    if key.dtype != query.dtype or value.dtype != query.dtype:
        raise InputError(f"query, key and value have dtypes {query.dtype}, {key.dtype} and {value.dtype}; use one")
    if coords.ndim < 2 or coords.shape[-1] not in (2, 3) or coords.shape[-2] != n or not _leads(coords, 2, shape[:-3]):
        expected = _show([*shape[:-3], n, "2 or 3"])
        raise InputError(
            f"coords have shape {_show(coords.shape)}, expected {expected}: one row for each of {n} instances"
        )


def _check_distance_parameters(x: Operands) -> None:
    """theta, beta and the embeddings of the distance."""
    lead, d, o = x.query.shape[:-2], x.query.shape[-1], x.value.shape[-1]
    embeds = (("key_embed", x.key_embed, d), ("query_embed", x.query_embed, d), ("value_embed", x.value_embed, o))
    for name, tensor, width in embeds:
        if tensor is None:
            continue
        if x.theta is None or x.beta is None:
            raise InputError(f"{name} is given without {'theta' if x.theta is None else 'beta'}: distances need both")
        if tensor.ndim < 3 or tensor.shape[-2:] != (2, width) or not _leads(tensor, 2, lead):
            raise InputError(f"{name} has shape {_show(tensor.shape)}, expected {_show([*lead, 2, width])} (rows u, v)")
    for name, tensor in (("theta", x.theta), ("beta", x.beta)):
        if tensor is not None and (tensor.ndim < 1 or not _leads(tensor, 0, lead)):
            raise InputError(f"{name} has shape {_show(tensor.shape)}, expected {_show(lead)}: one for each head")


def _check_marks(x: Operands) -> None:
    """Which instances are real, and in which sections they lie."""
    batch, n = x.query.shape[:-3], x.query.shape[-2]
    for name, tensor in (("mask", x.mask), ("section", x.section)):
        if tensor is not None and (tensor.ndim < 1 or tensor.shape[-1] != n or not _leads(tensor, 1, batch)):
            raise InputError(f"{name} has shape {_show(tensor.shape)}, expected {_show([*batch, n])}")
    if x.mask is not None and x.mask.dtype != torch.bool:
        raise InputError(
            f"mask has dtype {x.mask.dtype}, expected torch.bool (True = a real instance, False = padding)"
        )
    if x.section is not None and (x.section.dtype.is_floating_point or x.section.dtype.is_complex):
        raise InputError(f"section has dtype {x.section.dtype}, expected integers that name the sections")


def check_settings(dropout_p: float, product_term: bool, self_pair: bool, return_weights: bool) -> None:
    """The probability, and what is yes or no: any other value would mean something else to each backend."""
    if not isinstance(dropout_p, Real) or not 0 <= dropout_p < 1:
        raise InputError(f"dropout_p is {dropout_p!r}, expected a probability from 0 up to but not including 1")
    named = ("product_term", product_term), ("self_pair", self_pair), ("return_weights", return_weights)
    for name, found in named:
        if not isinstance(found, bool):
            raise InputError(f"{name} is {found!r}, expected True or False")


def check_scales(scale: float | Tensor, distance_scale: float | Tensor) -> None:
    """Each is one finite number. A scale on another device is not read: that would wait for the device."""
    for name, found, least, most, expected in (
        ("scale", scale, -LARGEST, LARGEST, "a finite number, for example query.shape[-1] ** -0.5"),
        ("distance_scale", distance_scale, SINGLE.tiny, SINGLE.max, "a length above 0 in the unit of the coordinates"),
    ):
        number = found
        if isinstance(found, Tensor) and found.numel() == 1:
            if name == "scale" and found.device.type != "cpu":
                continue
            number = found.item()
        if not isinstance(number, Real) or not least <= number <= most:
            told = f"a tensor of shape {_show(number.shape)}" if isinstance(number, Tensor) else repr(number)
            raise InputError(f"{name} is {told}, expected {expected}")


def check_seed(seed: int | Tensor | None, batch: torch.Size) -> None:
    """One whole number, or one for each of the first leading dimensions."""
    if seed is None or (isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**63):
        return
    if not isinstance(seed, Tensor):
        raise InputError(
            f"dropout_seed is {seed!r}, expected a whole number from 0 to 2^63 - 1 or a tensor of such numbers"
        )
    if seed.dtype.is_floating_point or seed.dtype.is_complex or seed.dtype == torch.bool:
        raise InputError(f"dropout_seed has dtype {seed.dtype}, expected integers")
    if seed.shape != batch[: seed.ndim]:
        raise InputError(
            f"dropout_seed has shape {_show(seed.shape)}, expected the first of the leading dimensions {_show(batch)}: "
            "one number for each run, or for each bag"
        )


def check_values(x: Operands, bias: str | None) -> None:
    """Coordinates that are no positions (those of padding count too), bags that are all padding, sections, lengths."""
    if not x.coords.isfinite().all():
        raise bad_coords()
    if x.mask is not None and not x.mask.any(-1).all():
        raise bad_mask()
    if x.section is not None:
        section = x.section.to(torch.int64)  # a uint8 would be compared with 255
        if (section < -1).any():
            raise bad_section()
        if (section >= 2**31).any():
            raise large_section()
    if bias in LENGTHS and x.bias_scale is not None and not (x.bias_scale > 0).all():
        raise bad_length()


def check_bias(bias: str | None, x: Operands) -> None:
    """A known kind with the parameters it needs, and no others."""
    if bias is not None and (not isinstance(bias, str) or bias not in BIASES):
        raise unknown_name("bias", bias, BIASES)
    heads = x.query.shape[:-2]
    for name, tensor, wanted in (
        ("bias_scale", x.bias_scale, bias is not None and bias != "bins"),
        ("bias_table", x.bias_table, bias == "bins"),
        ("bias_edges", x.bias_edges, bias == "bins"),
    ):
        if tensor is None and wanted:
            told = {"bias_scale": "one number for each head", "bias_table": "[heads, bins]", "bias_edges": "[bins - 1]"}
            raise InputError(f"bias is {bias!r} but {name} is missing: give a tensor, {told[name]}")
        if tensor is not None and not wanted:
            raise InputError(f"{name} is given, but bias is {bias!r}, which does not use it: leave one of them out")
    if x.bias_scale is not None and (x.bias_scale.ndim < 1 or not _leads(x.bias_scale, 0, heads)):
        raise InputError(
            f"bias_scale has shape {_show(x.bias_scale.shape)}, expected {_show(heads)}: one for each head"
        )
    if x.bias_table is not None and x.bias_edges is not None:
        if x.bias_edges.ndim != 1:
            raise InputError(f"bias_edges have shape {_show(x.bias_edges.shape)}, expected [bins - 1]")
        bins = x.bias_edges.shape[0] + 1
        if x.bias_table.ndim < 2 or x.bias_table.shape[-1] != bins or not _leads(x.bias_table, 1, heads):
            expected = _show([*heads, bins])
            raise InputError(
                f"bias_table has shape {_show(x.bias_table.shape)}, expected {expected}: "
                f"{bins} bins for {bins - 1} edges"
            )
        edges = x.bias_edges
        if edges.device.type != "meta" and not bool(edges.isfinite().all() & (edges.diff() > 0).all()):
            raise InputError("bias_edges hold numbers that do not ascend (or are not finite); sort them, each once")


def check_radius(radius: object, heads: int) -> tuple[float, ...] | None:
    """One number for each head."""
    if radius is None:
        return None
    if isinstance(radius, Tensor):
        if radius.ndim > 1:
            raise InputError(f"radius has shape {_show(radius.shape)}, expected one number, or one for each head")
        radius = radius.tolist()
    numbers: list[Any] = (
        list(radius) if isinstance(radius, Sequence) and not isinstance(radius, str) else [radius] * heads
    )
    if len(numbers) != heads:
        raise InputError(f"radius has {len(numbers)} numbers, expected one, or one for each of {heads} heads")
    for number in numbers:
        if not isinstance(number, Real) or isinstance(number, bool) or not float(number) >= 0:
            raise InputError(f"radius is {number!r}, expected a length of 0 or more in units of distance_scale")
    return tuple(map(float, numbers))


def bad_section() -> InputError:
    return InputError(
        "section holds numbers below -1; number the sections 0, 1, 2, ... (-1: a token without a place, a class token)"
    )


def large_section() -> InputError:
    return InputError("section holds numbers beyond 32 bits; number the sections 0, 1, 2, ...")


def bad_length() -> InputError:
    return InputError(
        "bias_scale holds a length that is not above 0 (for bias 'gaussian' and 'cauchy'); learn its logarithm instead"
    )


def bad_coords() -> InputError:
    return InputError("coords hold NaN or infinite values; repair or remove these instances")


def bad_mask() -> InputError:
    return InputError("mask hides every instance of a bag; leave such bags out")


def refuse_second_derivatives() -> None:
    """Called in a backward pass, where autograd records only for `create_graph=True`."""
    if torch.is_grad_enabled():
        raise InputError("a gradient of a gradient is wanted (create_graph=True), which only backend='reference' gives")


def _no_tensor(name: str, found: object) -> InputError:
    kind = type(found).__name__
    if kind == "ndarray":
        return InputError(f"{name} is a numpy array, expected a tensor; use torch.from_numpy({name})")
    if name in ("theta", "beta"):
        return InputError(f"{name} is of type {kind}, expected a tensor [heads], for example torch.tensor([0.5])")
    return InputError(f"{name} is of type {kind}, expected a tensor (torch.tensor makes one)")


def _leads(tensor: Tensor, tail: int, lead: torch.Size) -> bool:
    """Whether the dimensions before the last `tail` are those of query, its last ones, or 1 in places."""
    own = tensor.shape[: tensor.ndim - tail]
    if own == lead or not own:  # the usual cases: a bag of ten instances feels every microsecond
        return True
    return len(own) <= len(lead) and all(o in (1, s) for o, s in zip(reversed(own), reversed(lead)))


def _show(shape: object) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"  # pyright: ignore[reportArgumentType]

"""The options of a model: what each may be, read from the annotations of its constructor, checked at every door."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np

from dasmil.errors import InputError, nearest, shown
from dasmil.nn.pooling import POOLINGS
from dasmil.ops.das_attention import BIASES, PHI


@dataclass(frozen=True)
class Range:
    """The numbers that an option takes; below: up to, but without the upper end."""

    low: float
    high: float
    below: bool = False

    def holds(self, number: float) -> bool:
        return self.low <= number < self.high if self.below else self.low <= number <= self.high

    def __str__(self) -> str:
        return f"from {_plain(self.low)} to {'below ' if self.below else ''}{_plain(self.high)}"


@dataclass(frozen=True)
class Choices:
    """The words that an option takes."""

    words: tuple[str, ...]


Size = Annotated[int, Range(1, 65_536)]
"""Numbers per instance, units of a layer."""
Count = Annotated[int, Range(1, 256)]
"""How often something is there: layers, heads."""
Classes = Annotated[int, Range(2, 10_000)]
Bins = Annotated[int, Range(1, 4096)]
Probability = Annotated[float, Range(0, 1, below=True)]
Length = Annotated[float, Range(1e-12, 1e12)]
"""A length in the unit of the coordinates."""
Number = Annotated[float, Range(-1e9, 1e9)]

Bias = Annotated[str, Choices(BIASES)]
Pooling = Annotated[str, Choices(POOLINGS)]
Phi = Annotated[str, Choices(tuple(PHI))]

Kind = Literal["whole number", "number", "text", "true or false"]
_KINDS: dict[type, Kind] = {int: "whole number", float: "number", str: "text", bool: "true or false"}


@dataclass(frozen=True)
class Option:
    """One option of a constructor; several: a list of such values is taken too; empty: none is."""

    name: str
    kind: Kind
    default: Any = None
    range: Range | None = None
    choices: tuple[str, ...] = ()
    several: bool = False
    empty: bool = False

    def check(self, value: Any) -> Any:
        """The value in Python's own types; one clear error for any other."""
        if value is None and self.empty:
            return None
        if self.several and isinstance(value, list | tuple | np.ndarray) and 0 < len(value) <= 10_000:
            return [self._single(item) for item in value]
        return self._single(value)

    def _single(self, value: Any) -> Any:
        found = value.item() if isinstance(value, np.generic) else value
        if self.kind in ("whole number", "number"):
            found = self._number(found)
        elif not isinstance(found, str if self.kind == "text" else bool):
            found = None
        if found is None or (self.choices and found not in self.choices):
            near = nearest(value, self.choices)
            raise InputError(f"{self.name} is {shown(value)}, expected {self.meaning}{'.' * bool(near)}{near}")
        return found

    def _number(self, value: Any) -> int | float | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if not abs(value) <= 2**63 or (self.range is not None and not self.range.holds(value)):
            return None
        if self.kind == "number":
            return float(value)
        return int(value) if value == math.floor(value) else None

    @property
    def meaning(self) -> str:
        """What the option may be, in words."""
        words: str = self.kind if self.kind == "true or false" else f"a {self.kind}" if self.kind != "text" else "text"
        if self.choices:
            words = f"one of {', '.join(self.choices)}"
        if self.range is not None:
            words += f" {self.range}"
        if self.several:
            words += ", or a list of these"
        return words + (", or none" if self.empty else "")


def options_of(constructor: Any, defaults: Mapping[str, Any]) -> dict[str, Option]:
    """The options of a constructor by name, from its annotations; defaults: its keyword-only arguments."""
    hints = typing.get_type_hints(constructor, include_extras=True)
    return {name: read_option(name, hints[name], default) for name, default in defaults.items()}


def read_option(name: str, annotation: Any, default: Any = None) -> Option:
    """What an annotation allows: int, float, str or bool, with a range, choices, lists or none."""
    found: dict[str, Any] = {"empty": False, "several": False, "range": None, "choices": ()}
    kinds: list[Kind] = []
    waiting = [annotation]
    while waiting:
        part = waiting.pop(0)
        origin = get_origin(part)
        if origin in (types.UnionType, typing.Union):
            waiting += get_args(part)
        elif origin is Annotated:
            inner, *notes = get_args(part)
            for note in notes:
                found |= {"range": note} if isinstance(note, Range) else {"choices": note.words}
            waiting.append(inner)
        elif origin is Literal:
            found["choices"] += get_args(part)
            kinds.append("text")
        elif origin is not None and issubclass(origin, Sequence):
            found["several"] = True
            waiting += get_args(part)
        elif part is type(None):
            found["empty"] = True
        else:
            kinds.append(_KINDS[part])
    if len(set(kinds)) != 1:
        raise TypeError(f"{name}: an option is of one kind, its annotation names {kinds}")
    return Option(name, kinds[0], default, **found)


def _plain(number: float) -> str:
    return f"{number:,.0f}" if abs(number) < 1e9 and number == int(number) else f"{number:g}"

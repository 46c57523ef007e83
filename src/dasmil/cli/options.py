"""Options of a command that are fields of a configuration: name, type, default and help text stand with the field."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, field, fields, make_dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

from cyclopts import Group, Parameter
from docstring_parser import parse_from_object

Config = TypeVar("Config")
Kind = TypeVar("Kind", bound=type)


def options(
    *,
    leave_out: Collection[str] = (),
    flags: Mapping[str, str] | None = None,
    groups: Mapping[str, Group] | None = None,
) -> Callable[[Kind], Kind]:
    """Make a class below a configuration dataclass the options of a command: its fields, and no check of their values.

    ``filled`` checks them, when it makes the configuration: so a wrong value is one clear error. leave_out: fields that
    the command does not offer. flags: names of options that differ from their field. groups: the heading of an option.
    """

    def made(config: Kind) -> Kind:
        hints = {name: as_text(hint) for name, hint in get_type_hints(config, include_extras=True).items()}
        texts = _texts(config)
        offered: list[tuple[str, Any, Any]] = []
        for one in fields(config):
            if one.name not in leave_out:
                default = one.default if one.default_factory is MISSING else one.default_factory()
                how: dict[str, Any] = {"help": texts.get(one.name)}
                if flag := (flags or {}).get(one.name):
                    how["name"] = flag
                if group := (groups or {}).get(one.name):
                    how["group"] = group
                if hints[one.name] is bool and not default:  # a switch that is off has no --no-switch
                    how["negative"] = ""
                offered.append((one.name, Annotated[hints[one.name], Parameter(**how)], field(default=default)))
        found = make_dataclass(config.__name__, offered, frozen=True, kw_only=True)
        found.__module__ = config.__module__
        return Parameter(name="*")(found)  # pyright: ignore[reportReturnType]

    return made


def as_text(hint: Any) -> Any:
    """The type of an option: several names are one text on the command line, separated by commas."""
    return str | None if hint == tuple[str, ...] | None else hint


def filled(config: type[Config], options: object, **further: Any) -> Config:
    """The configuration that options stand for, with further fields; this is where values are checked."""
    given = {one.name: getattr(options, one.name) for one in fields(options)}  # pyright: ignore[reportArgumentType]
    return config(**{**given, **further})


def _texts(config: type) -> dict[str, str | None]:
    """What docstrings say about the fields of a class and of its bases."""
    bases = reversed(config.__mro__[:-1])
    return {one.arg_name: one.description for base in bases for one in parse_from_object(base).params}

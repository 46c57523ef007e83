"""The options by which a user points at a cohort; shared by all verbs that read one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path  # noqa: F401  (the types of inherited fields are looked up here)
from typing import Annotated, TypeVar, get_type_hints

from cyclopts import Group, Parameter

from dasmil.cli.options import as_text
from dasmil.study.spec import BagSpec, CohortSpec, Names, PathText  # noqa: F401  (likewise)

Flag = Annotated[bool, Parameter(negative="")]

Arguments = TypeVar("Arguments", bound=type[BagSpec])

BAGS = Group("Your bags", sort_key=1)
CELLS = Group("Tables of cells", sort_key=2)
TARGETS = Group("Survival, numbers, several targets", sort_key=3)
BUILT_IN = Group("Built-in data", sort_key=4)
TRAINING = Group("How it is trained", sort_key=5)
_OTHERS = {
    CELLS: ("bag_column", "x_column", "y_column", "one_hot", "feature_columns", "unit"),
    TARGETS: ("task", "time_column", "event_column", "time_unit", "survival", "time_bins", "times", "target_columns",
              "number_loss"),
}  # fmt: skip


HEADINGS = {one.name: BAGS for one in fields(CohortSpec)} | {
    name: group for group, names in _OTHERS.items() for name in names
}
"""Where the options of a cohort stand in --help; the specification itself knows nothing of it."""


def _in_groups(arguments: Arguments) -> Arguments:
    hints = get_type_hints(arguments, include_extras=True)
    arguments.__annotations__ = {
        name: Annotated[as_text(hint), Parameter(group=HEADINGS[name])] for name, hint in hints.items()
    }
    return arguments


@Parameter(name="*")
@_in_groups
@dataclass(frozen=True, kw_only=True)
class BagArguments(BagSpec):
    """Bags as options."""

    per_patient: Flag = False
    strict: Flag = False


@Parameter(name="*")
@_in_groups
@dataclass(frozen=True, kw_only=True)
class CohortArguments(CohortSpec):
    """Bags to train on as options."""

    per_patient: Flag = False
    strict: Flag = False


def option_names(fields: Iterable[str]) -> str:
    """Fields of the arguments as they are written on the command line."""
    return ", ".join("--" + name.replace("_", "-") for name in fields)

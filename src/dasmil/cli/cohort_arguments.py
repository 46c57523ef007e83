"""The options by which a user points at a cohort; shared by all verbs that read one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path  # noqa: F401  (the types of inherited fields are looked up here)
from typing import Annotated

from cyclopts import Parameter

from dasmil.study.spec import BagSpec, CohortSpec, PathText  # noqa: F401  (likewise)

Flag = Annotated[bool, Parameter(negative="")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BagArguments(BagSpec):
    """Bags as options."""

    per_patient: Flag = False
    strict: Flag = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CohortArguments(CohortSpec):
    """Bags to train on as options."""

    per_patient: Flag = False
    strict: Flag = False


def option_names(fields: Iterable[str]) -> str:
    """Fields of the arguments as they are written on the command line."""
    return ", ".join("--" + name.replace("_", "-") for name in fields)

"""--set name=value; counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Values by name; of two for one name the last counts."""
    return dict(map(_parse, assignments))


def check_counts(**given: int | None) -> None:
    """Refuse a count of none or fewer: 0 is not the same as nothing given."""
    from dasmil.errors import InputError

    for name, count in given.items():
        if count is not None and count < 1:
            raise InputError(f"--{name} is {count}, expected at least 1")


def _parse(assignment: str) -> tuple[str, Any]:
    """name=value; the value is a JSON number, list or true/false/null, else text."""
    import json

    from dasmil.errors import InputError, shown

    name, equals, text = assignment.partition("=")
    if not equals or not name:
        raise InputError(f"--set {shown(assignment)}: expected name=value, for example --set hidden=20")
    try:
        return name.strip().replace("-", "_"), json.loads(text)
    except (ValueError, RecursionError):
        return name.strip().replace("-", "_"), text

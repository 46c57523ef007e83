"""Where the bags of a run come from, as one of four kinds; what config.json notes of it is ``OriginRecord``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CAMELYON16 = "CAMELYON16"
"""The ``set`` of such runs."""


@dataclass(frozen=True)
class BuiltIn:
    """A data set that dasmil makes or knows by its name."""

    name: str
    protocol: str


@dataclass(frozen=True)
class OwnCohort:
    """Files of the user; spec: what was given about them, as ``CohortSpec`` notes it."""

    spec: Mapping[str, Any]
    classes: tuple[str, ...] | None
    task: Mapping[str, Any] | None
    held_out: Mapping[str, list[str]]
    of_fold: bool


@dataclass(frozen=True)
class Camelyon16(OwnCohort):
    """The slides of CAMELYON16, whose reference.csv is no label table: it has no header and no training slides."""


@dataclass(frozen=True)
class InMemory:
    """Bags that were given from Python; nothing says where they are."""


Origin = BuiltIn | OwnCohort | Camelyon16 | InMemory


def origin_from(record: Mapping[str, Any]) -> Origin:
    """The kind that a record is of."""
    if "cohort" in record:
        kind = Camelyon16 if record.get("set") == CAMELYON16 else OwnCohort
        classes = record.get("classes")
        return kind(
            record["cohort"], tuple(classes) if classes else None, record.get("task"), record.get("held_out", {}),
            "fold" in record,
        )  # fmt: skip
    if "name" in record:
        return BuiltIn(record["name"], record.get("protocol", "clean"))
    return InMemory()

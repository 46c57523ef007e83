"""How well scores of a run find annotated tiles: localisation.json in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dasmil.files import finite, write_json
from dasmil.runs import layout
from dasmil.runs.records import json_file


def read_localisation(run: Path) -> dict[str, Any] | None:
    """The last scores against annotations; None for a run without."""
    return json_file(run, layout.LOCALISATION) if (run / layout.LOCALISATION).is_file() else None


def write_localisation(run: Path, record: Mapping[str, Any]) -> None:
    """Store them, whole or not at all."""
    write_json(run / layout.LOCALISATION, finite(dict(record)))

"""The model of a path: of a file, or of the first seed of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dasmil.models.storage import read_model
from dasmil.runs.layout import find_model

if TYPE_CHECKING:
    from dasmil.models.base import MILModel


def load_model(path: str | Path) -> MILModel:
    """The model of a file, or of the first seed (and fold) of a run directory, on the CPU and in evaluation mode."""
    return read_model(find_model(Path(path)))

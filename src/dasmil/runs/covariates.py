"""What covariates tell beside a run: covariates.json in its folder, of a cross-validation in that of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dasmil.files import finite, write_json
from dasmil.runs import layout
from dasmil.runs.run import read_record
from dasmil.runs.schema import CovariateRecord


def read_covariates(run: Path) -> CovariateRecord | None:
    """What is stored; None for a run without covariates."""
    if not (run / layout.COVARIATES).is_file():
        return None
    return read_record(CovariateRecord, run, layout.COVARIATES)


def write_covariates(run: Path, record: Mapping[str, Any]) -> None:
    """Store it, whole or not at all."""
    write_json(run / layout.COVARIATES, finite(dict(record)))

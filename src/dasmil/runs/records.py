"""JSON files of a run directory, read and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dasmil.errors import DataError
from dasmil.runs import layout
from dasmil.runs.schema import FORMAT, Record, RunConfig, Summary, TrainingRecord, broken, checked


def read_config(folder: Path) -> RunConfig:
    """config.json of a run (or of a fold), finished or not."""
    config, file = json_file(folder, layout.CONFIG), folder / layout.CONFIG
    for section, name in (("model", "name"), ("training", None), ("data", None)):
        part = config.get(section)
        if not isinstance(part, dict) or (name and name not in part):
            raise broken(file, f"it has no section {section!r} that says what was run")
    if config.get("format") != FORMAT:
        raise DataError(f"{file} does not describe a run of dasmil train")
    checked(TrainingRecord, config["training"], file)
    return checked(RunConfig, config, file)


def read_summary(folder: Path) -> Summary:
    """summary.json of a run, of a fold, or of a cross-validation."""
    summary = json_file(folder, layout.SUMMARY)
    splits = summary.get("splits")
    if (
        not isinstance(splits, dict)
        or not splits
        or not all(isinstance(part, dict) and {"n", "mean"} <= set(part) for part in splits.values())
    ):
        raise broken(folder / layout.SUMMARY, "it has no scored splits")
    return checked(Summary, summary, folder / layout.SUMMARY)


def read_record(schema: type[Record], folder: Path, name: str) -> Record:
    """A JSON file of a run, checked."""
    return checked(schema, json_file(folder, name), folder / name)


def json_file(folder: Path, name: str) -> dict[str, Any]:
    """The object in a file; what is missing or broken is one error that names it."""
    try:
        value = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise broken(folder, f"the file {name} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise broken(folder / name, f"it cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise broken(folder / name, f"it holds a {type(value).__name__}, expected an object")
    return value

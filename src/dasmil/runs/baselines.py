"""The baselines beside a run: RUN/baselines/scores.json and one file of predictions each; folds have their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dasmil.files import finite, write_json
from dasmil.runs import layout
from dasmil.runs.answers import Answers, read_answers
from dasmil.runs.predictions import Predictions, read_predictions, write_predictions
from dasmil.runs.records import read_record
from dasmil.runs.schema import BaselineRecord, BaselineScores

SCORES = "scores.json"


def read_baselines(run: Path) -> dict[str, BaselineScores]:
    """The baselines of a run (or of a cross-validation as a whole) by name; none where they were left out."""
    return baseline_record(run)["baselines"]


def baseline_record(run: Path) -> BaselineRecord:
    """What is stored; without baselines an empty record."""
    folder = run / layout.BASELINES
    if not (folder / SCORES).is_file():
        return {"fingerprint": "", "baselines": {}}
    return read_record(BaselineRecord, folder, SCORES)


def baseline_predictions(run: Path, name: str) -> dict[str, Predictions]:
    """What a baseline says about every bag, by split; of a cross-validation in its folds."""
    return read_predictions(run / layout.BASELINES / f"{name}.csv")


def baseline_answers(run: Path, name: str) -> dict[str, Answers]:
    """The same where the task is no class."""
    return read_answers(run / layout.BASELINES / f"{name}.csv")


def write_baselines(
    run: Path,
    fingerprint: str,
    baselines: Mapping[str, Mapping[str, Any]],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
) -> None:
    """Write predictions, then the scores: baselines that have them are finished."""
    folder = run / layout.BASELINES
    for name, own in rows.items():
        write_predictions(folder / f"{name}.csv", own)
    write_json(folder / SCORES, finite({"fingerprint": fingerprint, "baselines": dict(baselines)}))

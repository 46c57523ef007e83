"""Openings of a test set are counted beside its labels, for all runs together."""

from __future__ import annotations

from pathlib import Path

import pytest

from dasmil.data.evaluation_log import evaluations, log_evaluation, log_path
from dasmil.errors import DataError


def test_each_opening_counts_for_its_own_set(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    assert [log_evaluation(labels, "one", f"run {i}") for i in range(3)] == [1, 2, 3]
    assert log_evaluation(labels, "two", "run 0") == 1
    assert [entry["run"] for entry in evaluations(labels, "one")] == ["run 0", "run 1", "run 2"]
    assert log_path(labels) == tmp_path / "labels.csv.test-log.jsonl"


def test_what_cannot_be_noted_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the test set stays locked"):
        log_evaluation(tmp_path / "nowhere" / "labels.csv", "one", "run")
    log_path(tmp_path / "labels.csv").write_text("{broken\n")
    with pytest.raises(DataError, match="line 1 is not JSON"):
        evaluations(tmp_path / "labels.csv", "one")

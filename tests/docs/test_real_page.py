"""The tables of docs/results/real.md are those of the stored predictions."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

ROOT = Path(__file__).parents[2]
STORED = ROOT / "docs" / "results" / "real"


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(ROOT / "experiments"), *sys.path])
    return importlib.import_module("real")


def test_the_tables_are_made_of_the_stored_predictions(real: ModuleType) -> None:
    text = STORED.with_suffix(".md").read_text(encoding="utf-8")
    assert text.split(real.BEGIN)[1].split(real.END)[0].strip() == real.page(STORED).strip()


def test_a_figure_is_the_mean_over_folds_of_the_held_out_scores() -> None:
    """Computed another way: of TNBC by composition, with scikit-learn."""
    known = json.loads((STORED / "tnbc.json").read_text(encoding="utf-8"))
    cell = json.loads((STORED / "tnbc.linear.json").read_text(encoding="utf-8"))
    scores, labels = np.array(cell["answers"]["composition"])[:, 0], np.array(known["targets"])[:, 0]
    fold = np.array(known["fold"])
    mean = np.mean([roc_auc_score(labels[fold == k], scores[fold == k]) for k in range(5)])
    row = re.search(r"\| TNBC: [^|]+\|[^|]+\| ([0-9.]+)", STORED.with_suffix(".md").read_text(encoding="utf-8"))
    assert row is not None
    assert row[1] == f"{mean:.3f}"


def test_no_patient_is_on_both_sides_of_a_fold() -> None:
    files = [file for file in STORED.glob("*.json") if file.name.count(".") == 1]
    assert len(files) >= 20
    for file in files:
        known = json.loads(file.read_text(encoding="utf-8"))
        of = {}
        for patient, fold in zip(known["patients"], known["fold"], strict=True):
            assert of.setdefault(patient, fold) == fold

"""The figures of docs/results/hundred-slides.md are those of the stored predictions."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from dasmil.stats import auroc

PAGE = Path(__file__).parents[2] / "docs" / "results" / "hundred-slides.md"
ROWS = {"100-slides": "| 100 slides, 1,024", "80-slides": "| 80 slides", "60-slides": "| 60 slides",
        "harder-types": "| 100 slides, types"}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_what_its_predictions_say(name):
    parts = json.loads((PAGE.with_suffix("") / f"{name}.json").read_text(encoding="utf-8"))["folds"]
    ids = [bag for part in parts for bag in part["bags"]]
    assert len(set(ids)) == len(ids)
    positive = np.concatenate([part["labels"] for part in parts]) == 1
    scores = np.concatenate([np.array(part["probabilities"]) for part in parts], axis=1)
    lengths = [run[0] for part in parts for run in part["lengths"]]
    cells = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(ROWS[name])).split(
        "|"
    )
    assert float(cells[3]) == round(float(np.mean([auroc(row, positive)[0] for row in scores])), 3)
    assert float(cells[4]) == round(float(auroc(scores.mean(0), positive)[0]), 3)
    shown = [float(number.replace(",", "")) for number in re.findall(r"[\d,]+", cells[5])[:2]]
    assert shown == [round(min(lengths)), round(max(lengths))]
    assert int(cells[6]) == round(float(np.mean([part["cpu_seconds_per_run"] for part in parts])))

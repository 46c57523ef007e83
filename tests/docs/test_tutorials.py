"""Every tutorial is a notebook that runs: its cells as one script, on small data, with its values checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LEARN = Path(__file__).parents[2] / "docs" / "learn"
SMALL = {  # instead of the values in the cell "parameters"; then what must hold at the end
    "first-model": (
        "n_bags, epochs = 24, 2",
        "assert len(test) == 24 and abs(total - float(account.logit)) < 1e-4; assert pair.distance > 0",
    ),
    "features": (
        "n_slides, folds, epochs = 12, 2, 2",
        "assert checkup.healthy and len(run.folds) == 2; assert answer.explanation.bag_id == slides[0].bag_id",
    ),
    "slides": (
        "encoder = 'null'",
        "assert bag.unit == 'um' and bag.metadata['tile_um'] == 128; assert len(bag.features) == len(bag.coords) > 40",
    ),
    "cells": (
        "n_patients, epochs = 24, 2",
        "assert len(cohort) == 24 and bag.features.shape == (86, 4); assert (work / 'run' / 'report.html').exists()",
    ),
    "operator": (
        "n, steps = 1000, 40",
        "assert (exact - fast).abs().max() < 1e-5; assert losses[-1] < 0.5 * losses[0]",
    ),
}


def cells(name: str) -> list[dict]:
    return json.loads((LEARN / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def test_every_notebook_is_in_this_list_and_has_parameters() -> None:
    assert {path.stem for path in LEARN.glob("*.ipynb")} == set(SMALL)
    for name in SMALL:
        tagged = [cell for cell in cells(name) if "parameters" in cell["metadata"].get("tags", ())]
        assert len(tagged) == 1
        assert not any(len(json.dumps(cell.get("outputs", []))) > 4_000 for cell in cells(name))


@pytest.mark.parametrize("name", sorted(SMALL))
def test_tutorial_runs(name: str, tmp_path: Path) -> None:
    small, holds = SMALL[name]
    lines: list[str] = []
    for cell in cells(name):
        if cell["cell_type"] == "code":
            lines.append("".join(cell["source"]))
            lines += [small] if "parameters" in cell["metadata"].get("tags", ()) else []
    (tmp_path / "tutorial.py").write_text("\n\n".join([*lines, holds]), encoding="utf-8")
    if name == "slides":
        pytest.importorskip("openslide", reason="needs the extra slides")
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, tmp_path / "tutorial.py"]
    done = subprocess.run(command, cwd=LEARN, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]

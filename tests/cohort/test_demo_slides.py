"""`dasmil demo --slides` through its real entry point, in a small form."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

DASMIL = Path(sys.executable).with_name("dasmil")


def test_it_goes_from_feature_files_to_an_explained_slide(tmp_path: Path):
    out = tmp_path / "out"
    done = subprocess.run(
        [DASMIL, "demo", "--slides", "--epochs", "1", "--bags", "8", "--out", out],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Doctor: 16 files" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2:] == [str(out / "explanation" / "explanation.html"), str(out / "report.html")]
    for model, name in (("das-mil", "DAS-MIL"), ("sa", "self-attention")):
        scored = json.loads((out / model / "summary.json").read_text())["splits"]["test"]
        assert scored["n"] == 4
        assert any(line.startswith(name) and f"AUROC {scored['mean']['auroc']:.3f}" in line for line in lines)
    # Two test slides of each class show nothing, and then no learned distance is named.
    text = (out / "report.html").read_text()
    (told,) = [line for line in lines if line.endswith("Planted were 1,200 µm.")]
    assert told.startswith("Too few bags to show that anything is better than chance: AUROC ")
    assert told in text
    assert "DAS-MIL learned the distance" not in done.stdout + text
    assert "Beside simple rules" in text
    labels = re.findall(r'aria-label="([^"]+)"', text)
    assert labels[0] == "What decided in a positive slide"
    assert not re.search(r"https?:|<link|<img|\bsrc=", text)
    with open(out / "explanation" / "instances.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    tiles, kinds = len(rows), {row["instance_name"] for row in rows}
    assert 400 <= tiles <= 900
    page = (out / "explanation" / "explanation.html").read_text()
    assert "every number below is a part of the logit of class positive. Its label is positive." in page
    assert "Model: seed 0; this bag was in its test set." in page
    assert kinds == {"type A", "type B", *(f"background {k}" for k in range(1, 5))}
    assert set(re.findall(r"#\d+ \[([^\]]+)\]</td>", page)) <= kinds
    # The folders of a demo may be replaced by the next one, others may not.
    (out / "sa" / ".dasmil-demo").unlink()
    again = subprocess.run([DASMIL, "demo", "--slides", "--out", out], capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "was not made by dasmil demo" in again.stderr

"""Python blocks of README and docs are executed as they stand, in a small world of the names that they use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for test_blocks.py
from test_blocks import NAMES, PAGES, blocks, is_python

# In this order: a report is of a run that an earlier page has trained.
EXECUTED = ("README.md", "docs/bag-format.md", "docs/datasets.md", "docs/explain.md", "docs/models.md",
            "docs/training.md", "docs/report.md", "docs/slide-encoders.md")  # fmt: skip
LEFT_OUT = {  # in these pages; test_blocks.py still binds their calls
    "dasmil.view(": "serves until it is stopped; tests/viewer does",
    'recipe="tuned"': "trains for an hour",
    "dasmil.fit(bags)": "takes no number of epochs, which keep the others short; tests/train/test_auto.py runs it",
}
WORLD = """
import csv, pathlib, shutil, torch, numpy as np
import torch.nn.functional as F
import dasmil
from dasmil.data.synthetic import MadeCohort, make_cohort

torch.manual_seed(0)
real_dataset, real_fit = dasmil.load_dataset, dasmil.fit
dasmil.load_dataset = lambda *a, **k: real_dataset(*a, **k)[:12]
dasmil.fit = lambda *a, **k: real_fit(*a, **{**k, "seeds": 1, "epochs": 1, "progress": False})
design = MadeCohort(tiles=(60, 70), islands=(1, 1), island_tiles=(2, 3), in_features=8, distance_um=800)
made = make_cohort(20, seed=1, design=design)
train_bags, val_bags, test_bags = made[:12], made[12:16], made[16:]
for place in ("bags/slide1.h5", "slide1.h5"):
    pathlib.Path(place).parent.mkdir(exist_ok=True)
    dasmil.write_bag(place, made[0])
small = {"seeds": 1, "epochs": 1, "progress": False}
real_fit("das-mil", train_bags, val_bags, out="runs/mine", tests={"test": test_bags}, **small)
for model in ("das-mil", "sa"):
    real_fit(model, train_bags, val_bags, out=f"runs/{model}", tests={"test": test_bags}, **small)
features, coords, mask = torch.randn(2, 30, 768), 1000 * torch.rand(2, 30, 2), torch.ones(2, 30, dtype=torch.bool)
b, heads, n, tile_width = 1, 2, 17, 256.0
qkv, grid, slopes = torch.randn(b, n, 3 * heads * 8), torch.rand(b, n - 1, 2), torch.tensor([0.5, 0.25])
"""
OWN = {"docs/slide-encoders.md": "page |= {'coords': 256 * torch.rand(b, n - 1, 2)}"}


def executed() -> dict[str, list[str]]:
    """The blocks of each page."""
    pages = {name: page for page, name in NAMES.items()}
    return {
        name: [
            text.replace("20_000", "300")  # instances of README's example
            for language, text in blocks(pages[name].read_text(encoding="utf-8"))
            if is_python(language, text) and not any(part in text for part in LEFT_OUT)
        ]
        for name in EXECUTED
    }


def test_python_blocks_run(tmp_path: Path) -> None:
    found = executed()
    assert sum(map(len, found.values())) >= 12
    script = [WORLD]
    for name, texts in found.items():
        script.append(
            f"page = dict(globals())  # what a block defines, the next one of the page may use\n{OWN.get(name, '')}"
        )
        for text in texts:
            first = text.strip().splitlines()[0]
            script.append(f"print('block:', {name!r}, {first!r}, flush=True)\nexec({text!r}, page)")
    (tmp_path / "blocks.py").write_text("\n".join(script), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "blocks.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-3000:]
    assert len(re.findall(r"^block:", done.stdout, re.M)) == sum(map(len, found.values()))


@pytest.mark.parametrize("part", LEFT_OUT)
def test_what_is_left_out_is_there(part: str) -> None:
    assert any(part in page.read_text(encoding="utf-8") for page in PAGES)

"""The figures of "How many cells touch" in docs/results/tnbc.md are those of the stored predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dasmil.stats import numeric_scores

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ROWS = {
    "composition": "ridge regression on composition", "mean-pool": "mean pool", "max-pool": "max pool",
    "sa": "self-attention", "das-mil": "DAS-MIL, defaults", "das-mil sum": "DAS-MIL, `pooling=sum` given",
}  # fmt: skip


def plain(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1)


@pytest.mark.parametrize("name", list(ROWS))
def test_the_page_has_the_stored_figures(name: str) -> None:
    folds = list(json.loads((RESULTS / "tnbc" / "contacts.json").read_text())["folds"].values())
    rng, weights = np.random.default_rng(0), []
    for fold in folds:
        patients, member = np.unique(fold["patients"], return_inverse=True)
        drawn = rng.multinomial(len(patients), np.full(len(patients), 1 / len(patients)), size=500)
        weights.append(drawn[:, member].astype(np.float64))
    every, draws, theta = [], [], []
    for fold, drawn in zip(folds, weights, strict=True):
        for run in fold["models"][name]:
            truth, said = np.array(fold["truth"]), np.array(run["said"])
            every.append(float(numeric_scores(truth, said)["r2"][0]))
            draws.append(numeric_scores(truth, said, drawn)["r2"])
            theta += run.get("theta_um", [])[:1]  # of the head that counts
    assert len(every) == 5
    low, high = np.nanquantile(np.mean(draws, axis=0), [0.025, 0.975])
    page = (RESULTS / "tnbc.md").read_text().partition("## How many cells touch")[2]
    (row,) = [line for line in page.splitlines() if line.replace("*", "").startswith(f"| {ROWS[name]} |")]
    assert f"{plain(float(np.mean(every)))} [{plain(low)}, {plain(high)}]" in row.replace("**", "")
    assert row.rstrip("| ").endswith(plain(min(every)))
    if name == "das-mil":
        assert np.mean(every) >= 0.8  # what was asked for
        assert 15.0 < min(theta) <= max(theta) < 15.5
    elif "sum" not in name:
        assert np.mean(every) < 0.05

"""Which models respect the multiple-instance assumption? The tests of Raff and Holt (2023) and their spatial twins.

Training bags offer a shortcut that test bags turn round (dasmil.data.yardsticks): a model that took it has an AUROC
near 1 on further bags like the training bags and below .5 on the test bags. Models without positions cannot learn the
twins. What is finished is kept in --out: the same command goes on.

Example: python experiments/mil_tests.py run --out docs/results/mil-tests.json
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from cyclopts import App
from sklearn.metrics import roc_auc_score

import dasmil
from dasmil.data.yardsticks import MIL_TESTS, NEAR_UM, mil_test
from dasmil.files import write_text
from dasmil.types import Bag

app = App()

LAYER = {"encoder": "linear-relu", "encoder_features": 64}
"""A trainable layer over the features of bags without positions: what max-pool and das-mil compare is otherwise linear
in them. With positions das-mil has its default encoder, which lets it start from pairs of types that come near.
"""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mean-pool": ("mean-pool", {}),
    "max-pool": ("max-pool", {}),
    "ab-mil": ("ab-mil", {"hidden": 32}),
    "das-mil": ("das-mil", {}),
    "max-pool monotone": ("max-pool", {"monotone": True, "hidden": 32}),
    "ab-mil monotone": ("ab-mil", {"monotone": True, "hidden": 32}),
    "gated-ab-mil monotone": ("gated-ab-mil", {"monotone": True, "hidden": 32}),
    "das-mil monotone": ("das-mil", {"monotone": True, "heads": 4, "hidden": 16, "dropout": 0.0}),
}
WITH_LAYER = ("mean-pool", "max-pool", "das-mil", "das-mil monotone")
SETTINGS: dict[str, Any] = {"bags": 1000, "epochs": 60, "lr": 5e-3}
FEWER: dict[str, dict[str, Any]] = {"das-mil": {"bags": 600, "epochs": 50, "lr": 1e-3}}
"""Pairs take longer, and unlearn at the larger rate."""


def score(row: str, test: str, seeds: int) -> dict[str, Any]:
    """AUROC of each seed on bags like those of training, and on the test bags."""
    model, options = MODELS[row]
    settings = SETTINGS | FEWER.get(model, {})
    bags = settings.pop("bags")
    train, like, turned = mil_test(test, bags), mil_test(test, bags, seed=1), mil_test(test, bags, "test")
    placed = test.endswith("-near")
    given = options | ({"distance_scale": 2 * NEAR_UM} if model == "das-mil" else {})
    given |= LAYER if row in WITH_LAYER and not placed else {}
    started = time.process_time()
    runs = dasmil.fit(model, train, seeds=seeds, model_options=given, progress=False, accumulate=8, **settings)
    return {
        "bags": bags,
        "train": [_auroc(run, like) for run in runs],
        "test": [_auroc(run, turned) for run in runs],
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def _auroc(run: Any, bags: list[Bag]) -> float:
    return round(float(roc_auc_score([bag.label for bag in bags], run.predict(bags))), 4)


@app.command
def run(*, out: Path, models: list[str] | None = None, tests: list[str] | None = None, seeds: int = 2) -> None:
    """Train every model on every test and write the AUROCs to --out. Twins are for models that look at positions."""
    record: dict[str, Any] = {"seeds": seeds, "results": {}}
    if out.exists():
        record = json.loads(out.read_text())
    for row in models or MODELS:
        for test in tests or MIL_TESTS:
            found = record["results"].setdefault(row, {})
            if test in found or (test.endswith("-near") and MODELS[row][0] != "das-mil"):
                continue
            found[test] = score(row, test, record["seeds"])
            write_text(out, json.dumps(record, indent=1) + "\n")
            print(row, test, found[test], flush=True)


@app.command
def table(record: Path) -> None:
    """Print the results as the rows of docs/results/mil-tests.md."""
    print("\n".join(rows(json.loads(record.read_text()))))


def rows(record: dict[str, Any]) -> list[str]:
    """A line for each model and test: the mean AUROC over seeds and the lowest one."""
    lines = [
        "| model | test | training bags | like training | test bags | lowest test |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for model, tests in record["results"].items():
        for test, found in tests.items():
            means = [sum(found[split]) / len(found[split]) for split in ("train", "test")]
            cells = [model, test, f"{found['bags']:,}", *(f"{mean:.3f}" for mean in means), f"{min(found['test']):.3f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    app()

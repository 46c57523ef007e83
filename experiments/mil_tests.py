"""Which models respect the multiple-instance assumption? The tests of Raff and Holt (2023) and their spatial twins.

Training bags offer a shortcut that test bags turn round (dasmil.data.yardsticks): a model that took it has an AUROC
near 1 on further bags like the training bags and below .5 on the test bags. Models without positions cannot learn the
twins. What is finished is kept in --out: the same command goes on.

Example: python experiments/mil_tests.py --out docs/results/mil-tests.json
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
"""A trainable layer over the features: scores of single instances and pairs are otherwise nearly linear in them."""
PAIRS = {"monotone": True, "heads": 4, "hidden": 16, "dropout": 0.0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mean-pool": ("mean-pool", LAYER),
    "max-pool": ("max-pool", LAYER),
    "ab-mil": ("ab-mil", {"hidden": 32}),
    "das-mil": ("das-mil", LAYER),
    "max-pool monotone": ("max-pool", {"monotone": True, "hidden": 32}),
    "ab-mil monotone": ("ab-mil", {"monotone": True, "hidden": 32}),
    "gated-ab-mil monotone": ("gated-ab-mil", {"monotone": True, "hidden": 32}),
    "das-mil monotone": ("das-mil", PAIRS | LAYER),
}
SETTINGS = {"epochs": 60, "lr": 5e-3, "accumulate": 8}


def score(row: str, test: str, bags: int, seeds: int, **settings: Any) -> dict[str, Any]:
    """AUROC of each seed on bags like those of training, and on the test bags."""
    model, options = MODELS[row]
    train, like, reversed_ = (
        mil_test(test, bags, split, seed) for split, seed in (("train", 0), ("train", 1), ("test", 0))
    )
    given = options | ({"distance_scale": 2 * NEAR_UM} if model == "das-mil" else {})
    started = time.process_time()
    runs = dasmil.fit(model, train, seeds=seeds, model_options=given, progress=False, **SETTINGS | settings)
    return {
        "train": [_auroc(run, like) for run in runs],
        "test": [_auroc(run, reversed_) for run in runs],
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def _auroc(run: Any, bags: list[Bag]) -> float:
    return round(float(roc_auc_score([bag.label for bag in bags], run.predict(bags))), 4)


@app.default
def main(
    *, out: Path, models: list[str] | None = None, tests: list[str] | None = None, bags: int = 400, seeds: int = 3
) -> None:
    """Train every model on every test and write the AUROCs to --out."""
    record: dict[str, Any] = {"bags": bags, "seeds": seeds, "results": {}}
    if out.exists():
        record = json.loads(out.read_text())
    for test in tests or MIL_TESTS:
        for row in models or MODELS:
            found = record["results"].setdefault(test, {})
            if row not in found:
                found[row] = score(row, test, bags, seeds)
                write_text(out, json.dumps(record, indent=1) + "\n")
                print(test, row, found[row], flush=True)


if __name__ == "__main__":
    app()

"""Which models learn the made cohort's rule: two tissue types within 1,500 um of each other.

Example: python experiments/made_cohort.py --out made-cohort.json
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from cyclopts import App
from sklearn.metrics import roc_auc_score

import dasmil
from dasmil.data.synthetic import MadeCohort, make_cohort

app = App()
LR = 5e-3  # what das-mil has by default; the others get the same


@app.default
def main(
    *,
    out: Path,
    models: list[str] | None = None,
    train: int = 120,
    test: int = 100,
    tiles: tuple[int, int] = (1000, 2000),
    epochs: int | None = None,
    seeds: int = 1,
) -> None:
    """Train each model, with default settings, on made slides with 768 features; score it on slides of another seed."""
    design = MadeCohort(tiles=tiles)
    slides = make_cohort(train, seed=1, design=design, name="train")
    held = make_cohort(test, seed=2, design=design, name="test")
    labels = [bag.label for bag in held]
    rows: list[dict[str, Any]] = []
    for name in models or ["max-pool", "ab-mil", "sa", "das-mil"]:
        begun = time.process_time()
        settings = {} if epochs is None else {"epochs": epochs}
        for run in dasmil.fit(name, slides, seeds=seeds, lr=LR, **settings):
            learned = [row["midpoint"] for row in run.model.learned_distances()]
            rows.append(
                {
                    "model": name, "seed": run.seed, "fitted": run.fitted, "attempts": len(run.attempts),
                    "train_loss": run.train_loss, "auroc": float(roc_auc_score(labels, run.predict(held))),
                    "theta_um": learned, "planted_um": design.distance_um,
                    "cpu_seconds": round(time.process_time() - begun, 1),
                }
            )  # fmt: skip
            print(
                f"{name} seed {run.seed}: test AUROC {rows[-1]['auroc']:.3f}, "
                f"theta {', '.join(f'{value:.0f}' for value in learned) or '-'} um, fitted {run.fitted}",
                flush=True,
            )
        out.write_text(
            json.dumps({"train": train, "test": test, "tiles": tiles, "epochs": epochs, "runs": rows}, indent=1)
        )


if __name__ == "__main__":
    app()

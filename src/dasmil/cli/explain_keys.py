"""`dasmil explain --key-instances`: do the scores of runs find the instances that made a bag positive?"""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dasmil.study.questions import LabelledBags


def keys(named: Sequence[Path], source: LabelledBags, gradient_bags: int, output: Path | None, json: bool) -> int:
    """Score every run named, or below a folder named, and print the table."""
    from dasmil.cli.display import Display, say
    from dasmil.cli.explain_questions import print_table
    from dasmil.study.keys import key_instances, markdown_beside

    table = None if output is None else output / "key-instances.csv"
    rows = key_instances(
        named, source, gradient_bags=gradient_bags, table=table, note=say, watch=lambda text: Display(f"{text}: ")
    )
    if json:
        print(json_module.dumps([asdict(row) for row in rows], indent=2))
        return 0
    cells = [
        (r.data, r.model, r.score, f"{r.auroc_mean:.3f}", f"{r.auroc_low:.3f} to {r.auroc_high:.3f}", f"{r.bags:,}",
         f"{r.seeds} ({r.fitted})", r.training)
        for r in rows
    ]  # fmt: skip
    header = ("data", "model", "score", "AUROC", "95 % interval", "bags", "seeds (fitted)", "training")
    print_table(header, cells, left=3)
    if table is not None:
        print(table)
        print(markdown_beside(table))
    return 0

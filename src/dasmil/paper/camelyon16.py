"""The paper's table of CAMELYON16: the models of `dasmil train --recipe camelyon16` beside the printed figures."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from dasmil.files import write_json, write_text
from dasmil.runs import Run

MODELS = ("max-pool", "ab-mil", "sa", "sa-axial", "sa-fourier", "disc-rel-sa", "transmil", "das-mil")
TABLE_COLUMNS = (("train", "auroc"), ("test", "auroc"), ("train", "balanced_accuracy"), ("test", "balanced_accuracy"))


def write_table(out: Path) -> Path:
    """Write table.json and table.md beside the runs, which are named after their models; the path of the second."""
    rows = table_rows(out)
    write_json(out / "table.json", rows)
    write_text(out / "table.md", table_text(rows))
    return out / "table.md"


def table_rows(out: Path) -> list[dict[str, Any]]:
    """One row per model: parameters, our mean and deviation over seeds, and the paper's figures."""
    expected = tomllib.loads(resources.files("dasmil.paper").joinpath("expected.toml").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = []
    for name in MODELS:
        run = Run.read(out / name)
        model = run.all_seeds[0].model()
        row: dict[str, Any] = {"model": name, "parameters": sum(p.numel() for p in model.parameters())}
        for split, metric in TABLE_COLUMNS:
            found = run.summary["splits"].get(split)
            row[f"{split}_{metric}"] = None if found is None else [found["mean"][metric], found["std"][metric]]
            row[f"paper_{split}_{metric}"] = expected["camelyon16"][name][metric][split]
        row["stuck_seeds"] = run.summary["stuck_seeds"]
        rows.append(row)
    return rows


def table_text(rows: list[dict[str, Any]]) -> str:
    """The table in Markdown; every cell: ours, and the paper's in brackets."""
    titles = [f"{metric.replace('_', ' ')}, {split}" for split, metric in TABLE_COLUMNS]
    lines = [
        "| model | parameters | " + " | ".join(titles) + " | did not fit |",
        "|---|---:|" + "---:|" * (len(titles) + 1),
    ]
    for row in rows:
        cells = [
            f"{_figure(row[f'{split}_{metric}'])} ({_figure(row[f'paper_{split}_{metric}'])})"
            for split, metric in TABLE_COLUMNS
        ]
        lines.append(
            f"| {row['model']} | {row['parameters']:,} | {' | '.join(cells)} | {len(row['stuck_seeds'])} seeds |"
        )
    return "\n".join(lines) + "\n\nIn brackets: the paper, on the real CAMELYON16.\n"


def _figure(value: list[float | None] | None) -> str:
    if value is None or value[0] is None:
        return "-"
    return f"{value[0]:.3f}" if value[1] is None else f"{value[0]:.3f} ± {value[1]:.3f}"

"""CAMELYON16 through `dasmil train --recipe camelyon16`: its source of bags, and the paper's table of all models."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dasmil.cli.cohort_arguments import CohortArguments, show_cohort
from dasmil.cli.cohort_source import CAMELYON16, cohort_source, cohort_words
from dasmil.cli.sources import Source, Splits

MODELS = ("max-pool", "ab-mil", "sa", "sa-axial", "sa-fourier", "disc-rel-sa", "transmil", "das-mil")
TABLE_COLUMNS = (("train", "auroc"), ("test", "auroc"), ("train", "balanced_accuracy"), ("test", "balanced_accuracy"))


def camelyon16_source(
    arguments: CohortArguments, features: Path, reference: Path, *, folds: int | None = None, split_seed: int = 0
) -> Source:
    """Training slides by name, test slides by the challenge's table; counts are checked and printed.

    As in the paper there is no validation set: the last epoch counts, and all training slides are trained on.
    """
    from dasmil.data.camelyon16 import camelyon16_labels

    arguments = replace(arguments, bags=features, labels=reference, classes="Normal,Tumor")

    def rounds() -> list[Splits]:
        found = camelyon16_labels(features, reference)
        for split, labels in found.counts.items():
            counts = ", ".join(f"{count} {label}" for label, count in labels.items())
            print(f"CAMELYON16 {split}: {counts}", file=sys.stderr)
        for note in found.notes:
            print(f"  {note}", file=sys.stderr)
        if folds is not None:
            parts = cohort_source(arguments, folds=folds, split_seed=split_seed, labels=found.rows).rounds()
            return [replace(part, data={**part.data, "set": CAMELYON16}) for part in parts]
        cohort = arguments.load(found.rows)
        show_cohort(cohort)
        parts = cohort.splits
        test = cohort.subset(parts.get("test", []))
        record: dict[str, Any] = {
            "bags": str(features), "classes": list(cohort.classes), "set": CAMELYON16,
            "cohort": arguments.as_record(), "held_out": {"test": test.bag_ids}, "complete": found.complete,
            **cohort_words(cohort),
        }  # fmt: skip
        counted = len(test) > 0
        return [Splits(cohort.subset(parts.get("train", [])), None, {"test": test} if counted else {}, record, counted)]

    return Source(rounds, preset="camelyon16")


def train_table(out: Path, train_one: Callable[[str, Path], int]) -> int:
    """Train every model of the paper's CAMELYON16 table below ``out``, then write and print the table."""
    from dasmil.files import write_json, write_text

    for name in MODELS:
        print(f"\n{name}", file=sys.stderr)
        code = train_one(name, out / name)
        if code:
            return code
    rows = table_rows(out)
    write_json(out / "table.json", rows)
    text = table_text(rows)
    write_text(out / "table.md", text)
    print(text)
    print(out / "table.md")
    return 0


def table_rows(out: Path) -> list[dict[str, Any]]:
    """One row per model: parameters, our mean and deviation over seeds, and the paper's figures."""
    from importlib import resources

    from dasmil.runs import Run

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

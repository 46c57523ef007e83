"""The key-instance table: one row for each run and score, kept as CSV so that nothing is computed twice."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from dasmil import __version__
from dasmil.attribution.export import written
from dasmil.attribution.key_instances import KeyScore
from dasmil.errors import DataError

FORMAT = 3  # of the scores: raised when one of them means something else, so that old rows are computed again


@dataclass(frozen=True)
class KeyRow:
    """A score of a run on a data set; digest: of the weights and of everything else that decided the figures.

    fitted: how many of the seeds fitted their training bags; training: the settings that matter when reading the table.
    """

    data: str
    model: str
    score: str
    auroc_mean: float
    auroc_low: float
    auroc_high: float
    bags: int
    seeds: int
    fitted: int
    training: str
    per_seed: str
    digest: str

    @classmethod
    def of(cls, data: str, score: KeyScore, fitted: int, training: str, digest: str) -> KeyRow:
        per_seed = " ".join(f"{value:.4f}" for value in score.seeds)
        low, mean, high = (round(value, 4) for value in (score.low, score.mean, score.high))
        return cls(
            data, score.model, score.score, mean, low, high, score.n_bags, len(score.seeds), fitted, training,
            per_seed, digest,
        )  # fmt: skip

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds (n - 1)."""
        return float(np.std([float(v) for v in self.per_seed.split()], ddof=1)) if self.seeds > 1 else None


COLUMNS = tuple(field.name for field in fields(KeyRow))


def digest_of(files: Iterable[Path], *settings: object) -> str:
    """Twelve hex digits that change with any weight, any setting and the meaning of the scores."""
    total = hashlib.sha256(repr((FORMAT, __version__, settings)).encode())
    for file in files:
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:12]


def read_rows(path: Path) -> list[KeyRow]:
    """The rows of an earlier table; none where there is no file or it was written by an older version."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file)
        try:
            if tuple(table.fieldnames or ()) != COLUMNS:
                return []
            return [
                KeyRow(
                    **{f.name: {"int": int, "float": float}.get(str(f.type), str)(row[f.name]) for f in fields(KeyRow)}
                )
                for row in table
            ]
        except (TypeError, ValueError, csv.Error) as error:
            raise DataError(f"{path} cannot be read as a table of key instances ({error}): remove it") from error


def write_rows(path: Path, rows: Sequence[KeyRow]) -> None:
    with written(path) as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for row in rows:
            numbers = [f"{v:.4f}" for v in (row.auroc_mean, row.auroc_low, row.auroc_high)]
            out.writerow([row.data, row.model, row.score, *numbers, *(getattr(row, name) for name in COLUMNS[6:])])


def write_markdown(path: Path, rows: Sequence[KeyRow]) -> None:
    """One line for each model and score, one column for each data set; models by their best score, best first."""
    sets = list(dict.fromkeys(row.data for row in rows))
    lines: dict[tuple[str, str, str], dict[str, KeyRow]] = {}
    for row in rows:
        lines.setdefault((row.model, row.training, row.score), {})[row.data] = row

    def mean(cells: dict[str, KeyRow]) -> float:
        return float(np.mean([row.auroc_mean for row in cells.values()]))

    best: dict[tuple[str, str], float] = {}
    for (model, training, _), cells in lines.items():
        best[model, training] = max(best.get((model, training), 0.0), mean(cells))
    order = sorted(lines, key=lambda k: (-best[k[0], k[1]], k[0], k[1], -mean(lines[k])))
    with written(path) as file:
        file.write(
            "Mean AUROC within positive bags ± standard deviation over seeds, in brackets the 95 % interval over "
        )
        file.write("bags. Written by `dasmil explain --key-instances`; data: `key-instances.csv`.\n\n")
        file.write(
            "| model | score | " + " | ".join(_short(name) for name in sets) + " | seeds (fitted) | training |\n"
        )
        file.write("|---|---|" + "---|" * len(sets) + "---|---|\n")
        for key in order:
            cells = lines[key]
            counts = [f"{cells[name].seeds} ({cells[name].fitted})" for name in sets if name in cells]
            texts = [_cell(cells.get(name)) for name in sets]
            score = key[2].replace("|", "\\|")
            file.write(
                f"| {key[0]} | {score} | {' | '.join(texts)} | {', '.join(dict.fromkeys(counts))} | {key[1]} |\n"
            )


def _short(data: str) -> str:
    return re.sub(r", clean protocol, split test-large$", "", data)


def _cell(row: KeyRow | None) -> str:
    if row is None:
        return "-"
    spread = "" if row.spread is None else f" ± {row.spread:.3f}"
    return f"{row.auroc_mean:.3f}{spread} ({row.auroc_low:.3f}-{row.auroc_high:.3f})"

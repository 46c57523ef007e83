"""The tables as data: one entry per row and data set, with our figures, the paper's, and their agreement."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from dasmil.models import MODELS
from dasmil.paper.cells import DATASETS, DISTANCE_ROWS, FIELD_ROWS, make_cell, table_rows
from dasmil.paper.stored import cell_path, read_cell, read_predictions
from dasmil.stats.pairs import METRICS, difference

TITLES = {
    "collage": "The paper's collage tables",
    "tuned": "All models with the tuned recipe",
    "ablations": "The paper's ablation table",
}
TRUE_DISTANCE = {"mnist-collage": 80.0, "mnist-collage-inv": 170.0}
"""In pixels: what theta should become."""

AGREES_WITHIN_STD, AGREES_WITHIN = 3.0, 0.05
"""Ours agrees with the paper's within so many of its standard deviations, or so much, whichever is larger."""


@dataclass(frozen=True)
class PrintedEntry:
    """One row of a table on one data set; cell is None while it has not been run."""

    table: str
    row: str
    model: str
    dataset: str
    position: str
    cell: dict[str, Any] | None
    predictions: Path
    paper: Mapping[str, Mapping[str, tuple[float, float]]]
    """metric -> train or test -> printed mean and standard deviation; empty where the paper prints none."""

    def figure(self, split: str, metric: str) -> dict[str, Any] | None:
        """mean, std, per_seed and interval on a set, or None."""
        return None if self.cell is None else self.cell["summary"][split][metric]

    def printed(self, split: str, metric: str) -> tuple[float, float] | None:
        found = self.paper.get(metric, {}).get(split)
        return None if found is None else (float(found[0]), float(found[1]))

    def gap(self, metric: str) -> float | None:
        """Our mean on the protocol's test set minus the paper's."""
        ours, printed = self.figure("test", metric), self.printed("test", metric)
        return None if ours is None or printed is None else float(ours["mean"]) - printed[0]

    def agrees(self, metric: str) -> bool | None:
        gap, printed = self.gap(metric), self.printed("test", metric)
        if gap is None or printed is None:
            return None
        return abs(gap) <= max(AGREES_WITHIN_STD * printed[1], AGREES_WITHIN) + 1e-12

    @property
    def stuck(self) -> int:
        return 0 if self.cell is None else len(self.cell["stuck_seeds"])

    @property
    def seeds(self) -> int:
        return 0 if self.cell is None else len(self.cell["plan"]["seeds"])

    @property
    def thresholds(self) -> list[float]:
        """The learned midpoint of phi in pixels, one a seed; empty for models that learn none."""
        if self.cell is None:
            return []
        return [row["midpoint"] for status in self.cell["seeds"] for row in status["learned_distances"][:1]]


@cache
def expected() -> dict[str, Any]:
    """The figures printed in the paper."""
    return tomllib.loads(resources.files("dasmil.paper").joinpath("expected.toml").read_text(encoding="utf-8"))


def _printed(table: str, row: str, dataset: str) -> dict[str, Any]:
    if table == "ablations":
        figures = expected()["ablations"].get(row, {}).get(dataset)
        return {} if figures is None else {"balanced_accuracy": figures}
    if table == "collage":
        found = {metric: expected()["collage"][metric].get(row, {}).get(dataset) for metric in METRICS}
        return {metric: figures for metric, figures in found.items() if figures is not None}
    return {}  # the tuned recipe is ours


def entries(table: str, protocol: str, results: Path) -> list[PrintedEntry]:
    """All rows of a table on both data sets, filled or not, in the order of print."""
    found = []
    for dataset in DATASETS:
        for row in table_rows(table):
            cell = make_cell(table, row, dataset, protocol)
            path = cell_path(results, cell.key)
            entry = PrintedEntry(
                table, row, cell.model, dataset,
                "relative" if row in DISTANCE_ROWS else MODELS[cell.model].position, read_cell(path),
                path.with_suffix(".npz"), _printed(table, row, dataset),
            )  # fmt: skip
            found.append(entry)
    return found


@dataclass(frozen=True)
class DistanceValue:
    """DAS-MIL minus plain self-attention on the large clean test set, trained alike, with a paired interval."""

    recipe: str
    dataset: str
    metric: str
    difference: float
    interval: tuple[float, float]
    seeds: tuple[int, int]


def distance_values(protocol: str, results: Path) -> list[DistanceValue]:
    """For both recipes and data sets, as far as both models have been trained."""
    found = []
    for table, recipe in (("collage", "paper"), ("tuned", "tuned")):
        for dataset in DATASETS:
            pair = [e for row in ("das-mil", "sa") for e in entries(table, protocol, results)
                    if e.row == row and e.dataset == dataset and e.cell is not None]  # fmt: skip
            if len(pair) < 2:
                continue
            stored = [read_predictions(entry.predictions) for entry in pair]
            gaps = difference(
                stored[0].labels["test-large"], *(predictions.logits["test-large"] for predictions in stored)
            )
            for metric, gap in gaps.items():
                low, high = gap["interval"]
                value = DistanceValue(
                    recipe, dataset, metric, gap["difference"], (low, high), (pair[0].seeds, pair[1].seeds)
                )
                found.append(value)
    return found


def claims(table: str, rows: list[PrintedEntry]) -> list[str]:
    """What a table says in sentences, each computed from its figures."""
    done = [entry for entry in rows if entry.cell is not None]
    texts = [f"{len(done)} of {len(rows)} cells have been run."] if len(done) < len(rows) else []
    judged = [(entry, entry.agrees("balanced_accuracy")) for entry in done]
    known = [(entry, verdict) for entry, verdict in judged if verdict is not None]
    if known:
        outside = [f"{e.row} on {e.dataset} ({e.gap('balanced_accuracy'):+.3f})" for e, ok in known if not ok]
        tail = f"; outside: {', '.join(outside)}." if outside else "."
        texts.append(
            f"Test balanced accuracy agrees with the paper (3 of its standard deviations or 0.05) in "
            f"{len(known) - len(outside)} of {len(known)} cells{tail}"
        )
    for dataset in DATASETS if table != "ablations" else ():
        own = [entry for entry in done if entry.dataset == dataset]
        texts += _order(dataset, [entry for entry in own if entry.row not in (*DISTANCE_ROWS, *FIELD_ROWS)])
        texts += _beside(dataset, own, "ways to tell distance", tuple(DISTANCE_ROWS))
        texts += _beside(dataset, own, "models that others published", FIELD_ROWS)
    stuck = [f"{e.row} on {e.dataset} ({e.stuck} of {e.seeds})" for e in done if e.stuck and e.model == "das-mil"]
    if any(entry.model == "das-mil" for entry in done):
        texts.append(f"das-mil seeds that did not fit the training bags: {', '.join(stuck) or 'none'}.")
    if table == "collage":
        texts += [_while_training(entry) for entry in done if entry.row == "das-mil"]
    if table != "ablations":
        texts += [_threshold(entry) for entry in done if entry.row == "das-mil" and entry.thresholds]
    return texts


def leak(rows: list[PrintedEntry]) -> list[str]:
    """How the models do on the positive test bags of the published split, which repeat training layouts, and elsewhere.

    Only positive bags leak, so a leak shows as a gain in sensitivity without one in specificity.
    """
    gains: dict[str, list[float]] = {"sensitivity": [], "specificity": []}
    for entry in rows:
        if entry.cell is None:
            continue
        stored = read_predictions(entry.predictions)
        for name, c in (("sensitivity", 1), ("specificity", 0)):
            right = {
                split: float(((stored.logits[split][:, stored.labels[split] == c] >= 0) == bool(c)).mean())
                for split in ("test", "test-large")
            }
            gains[name].append(right["test"] - right["test-large"])
    if not gains["sensitivity"]:
        return []
    means = {name: sum(values) / len(values) for name, values in gains.items()}
    return [
        f"On the published 100 test bags, {len(gains['sensitivity'])} trained cells score on average "
        f"{means['sensitivity']:+.3f} in sensitivity (the positive bags repeat training layouts) and "
        f"{means['specificity']:+.3f} in specificity (the negative ones do not) against 2,000 clean bags."
    ]


def _order(dataset: str, done: list[PrintedEntry]) -> list[str]:
    """Whether attention with relative distances beats all others on the large clean test set."""
    means = {entry.row: float(entry.cell["summary"]["test-large"]["balanced_accuracy"]["mean"])
             for entry in done if entry.cell is not None}  # fmt: skip
    relative = {row: means[row] for row in ("das-mil", "disc-rel-sa") if row in means}
    others = {row: value for row, value in means.items() if row not in relative}
    if len(relative) < 2 or not others:
        return []
    worst, best = min(relative, key=relative.__getitem__), max(others, key=others.__getitem__)
    verdict = "above" if relative[worst] > others[best] else "not above"
    return [
        f"{dataset}, 2,000 clean bags, models of the paper and two poolings: attention with relative distances is "
        f"{verdict} all {len(others)} others "
        f"({worst} {relative[worst]:.3f}, best other {best} {others[best]:.3f})."
    ]


def _beside(dataset: str, done: list[PrintedEntry], title: str, rows: tuple[str, ...]) -> list[str]:
    """How rows that are not the paper's do beside das-mil and sa, best first."""
    means = {entry.row: float(entry.cell["summary"]["test-large"]["balanced_accuracy"]["mean"])
             for entry in done if entry.cell is not None and entry.row in ("das-mil", "sa", *rows)}  # fmt: skip
    if not set(means) & set(rows):
        return []
    ranked = sorted(means, key=means.__getitem__, reverse=True)
    return [f"{dataset}, 2,000 clean bags, {title}: {', '.join(f'{r} {means[r]:.3f}' for r in ranked)}."]


def _while_training(entry: PrintedEntry) -> str:
    assert entry.cell is not None
    seen = [status["last_epoch"]["train_balanced_accuracy"] for status in entry.cell["seeds"]]
    mean, printed = sum(seen) / len(seen), entry.printed("train", "balanced_accuracy")
    return (
        f"das-mil on {entry.dataset}, training bags as seen in the last epoch, with dropout: balanced accuracy "
        f"{mean:.3f}" + (f" (printed: {printed[0]:.3f})." if printed else ".")
    )


def _threshold(entry: PrintedEntry) -> str:
    values, true = entry.thresholds, TRUE_DISTANCE[entry.dataset]
    worst = max(abs(value / true - 1) for value in values)
    return (
        f"das-mil on {entry.dataset} learned a distance of {sum(values) / len(values):.1f} px on average "
        f"({min(values):.1f} to {max(values):.1f}; true {true:g} px, largest deviation {100 * worst:.1f} %)."
    )

"""The tables of a report, made from a run directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from dasmil.report import figures
from dasmil.report.figures import Score
from dasmil.report.page import BagRow, BagTable, Cell, Column, FoldedText, Headline, Section, Table, picture
from dasmil.report.pictures import roc_curves
from dasmil.report.words import (
    decimal,
    interval_text,
    protocol_text,
    resampled_text,
    scored_bags,
    set_bags,
    too_few_text,
)
from dasmil.runs import Run
from dasmil.vocabulary import METRICS

MAX_BAG_ROWS = 5000
FACTS = {
    "name": "Data set", "protocol": "Protocol", "bags": "Bags", "split_seed": "Split seed", "slides": "Cohort",
    "unmatched": "Not matched", "left_out": "Left out", "positions": "Positions", "test_set": "Test set",
    "fold": "Fold", "folds": "Folds",
}  # fmt: skip
"""Titles of what data.json notes about the bags."""


def headline(run: Run, split: str, metric: str) -> Headline:
    """A score of a split in large figures, with its interval and spread."""
    scored = run.summary["splits"][split]
    ends = scored.get("interval", {}).get(metric)
    interval = interval_text(ends)
    spread = scored.get("std", {}).get(metric)
    count = len(run.seeds) if not run.folds else len(run.folds)
    parts = [f"95 % interval {interval}"] if interval else []
    if interval and ends and ends[0] == ends[1]:  # a perfect score has no other resamples: no sign of certainty
        parts[0] += f" (every resample of these {scored_bags(scored)} scores the same)"
    if count > 1:
        parts.append(f"± {decimal(spread)} over {'seeds' if not run.folds else 'folds'}")
    return Headline(METRICS[metric].title, decimal(scored["mean"].get(metric)), ", ".join(parts))


def scores_table(run: Run) -> Table:
    """All metrics (rows) of all splits (columns): mean ± sd over seeds, the interval below."""
    splits = run.splits
    columns = [Column("")] + [Column(f"{s}, {set_bags(run, s)}", True) for s in splits]
    rows: list[list[str | Cell]] = []
    for metric, name in ((m.name, m.title) for m in METRICS.values()):
        cells: list[str | Cell] = [name]
        for split in splits:
            scored = run.summary["splits"][split]
            mean, std = scored["mean"].get(metric), scored.get("std", {}).get(metric)
            text = decimal(mean) + (f" ± {decimal(std)}" if len(run.all_seeds) > 1 and decimal(mean) != "–" else "")
            cells.append(Cell(text, interval_text(scored.get("interval", {}).get(metric))))
        rows.append(cells)
    return Table(columns, rows, note=score_note(run))


def score_note(run: Run) -> str:
    found = run.summary.get("threshold")
    chosen = isinstance(found, dict) and found.get("chosen_on") == "val"
    each = "the threshold that each fold" if run.folds else f"{run.threshold:.3f}, the threshold that the run"
    where = f"{each} chose on its validation bags" if chosen else "0.5"
    over = "folds" if run.folds else "seeds"
    drawn = resampled_text(run.summary["splits"])
    cut = "the most probable class" if run.classes > 2 else f"0.5; sensitivity and specificity at {where}"
    few = too_few_text(run.summary["splits"])
    return (
        f"Mean ± standard deviation over {over}; below it the 95 % interval of the mean over the {drawn}. "
        f"Balanced accuracy and F1 at {cut}. Lower is better for Brier score and calibration error."
        f"{' ' * bool(few)}{few}"
    )


def folds_section(run: Run, split: str) -> Section | None:
    """Scores and ROC curve of each fold; None without folds."""
    if not run.folds:
        return None
    rows = []
    for fold in run.folds:
        scored = fold.summary["splits"].get(split) or fold.summary["splits"][fold.splits[0]]
        interval = scored.get("interval", {}).get("auroc")
        known = tuple(interval) if interval and None not in interval else None
        mean = scored["mean"].get("auroc")
        if mean is not None:
            rows.append(Score(f"{fold.path.name}, {scored_bags(scored)}", mean, known,
                              [v for s in scored.get("per_seed", []) if (v := s["auroc"]) is not None]))  # fmt: skip
    if not rows:
        return None
    pictures = [
        picture(
            figures.scores(rows, "AUROC"),
            "Scores of the folds",
            "Mean over seeds with its 95 % interval; rings are seeds.",
        )
    ]
    for fold in run.folds if run.classes == 2 else []:
        if split in fold.summary["splits"] and (curves := roc_curves(fold, split, name=fold.path.name)):
            pictures.append(picture(figures.roc(curves), f"ROC curve, {fold.path.name}", "With its 95 % band."))
    return Section("Folds", pictures=pictures)


def bags_section(run: Run, extra: str = "") -> Section:
    """Every bag with its truth, mean probability and spread, as a sortable table."""
    binary = run.classes == 2
    names = run.class_names
    columns = [Column("Bag"), Column("Split"), Column("True"), Column("Predicted"),
               Column(f"Probability of {names[1]}" if binary else "Confidence", True), Column("± over seeds", True),
               Column("Seeds right", True)]  # fmt: skip
    rows: list[BagRow] = []
    total = 0
    splits: list[str] = []
    for split in run.splits:
        parts, found = run.per_seed(split), run.ensemble(split)
        if found is None:
            continue
        splits.append(split)
        total += len(found.labels)
        spread = np.std([p.probabilities for p in parts], axis=0, ddof=1) if len(parts) > 1 else found.probabilities
        right = np.sum([p.predictions == p.labels for p in run.decided(split)], axis=0)
        for i, bag_id in enumerate(found.bag_ids[: max(0, MAX_BAG_ROWS - len(rows))]):
            label, guess = int(found.labels[i]), int(found.predictions[i])
            at = i if binary else (i, guess)
            cells = [
                bag_id, split, names[label] if 0 <= label < len(names) else "–", names[guess],
                f"{found.probabilities[at]:.3f}", f"{spread[at]:.3f}" if len(parts) > 1 else "–",
                f"{right[i]}/{len(parts)}" if label >= 0 else "–",
            ]  # fmt: skip
            rows.append(BagRow(split, cells, label >= 0 and label != guess))
    note = "Click a column to sort by it. Wrong predictions are orange."
    if total > len(rows):
        note += f" The first {len(rows):,} of {total:,} bags are shown; predictions.csv has all."
    return Section(
        "Every bag", text=[extra] if extra else [], bags=BagTable(columns, rows, splits, note), anchor="every-bag"
    )


def data_section(run: Run) -> Section:
    """Splits, protocol and fingerprint of the bags; of a cross-validation those of every fold."""
    parts = run.folds or [run]
    splits = {
        f"{part.path.name}, {name}" if run.folds else name: facts
        for part in parts
        for name, facts in part.data.get("splits", {}).items()
    }
    columns = [Column("Split"), Column("Bags", True), Column("By class", False), Column("Instances per bag", True)]
    rows: list[list[str | Cell]] = []
    for name, facts in splits.items():
        sizes = facts.get("instances") or {}
        text = "–"
        if isinstance(sizes, dict) and {"min", "median", "max"} <= set(sizes):
            text = f"{sizes['median']:g} ({sizes['min']:g}–{sizes['max']:g})"
        rows.append([name, f"{facts['n']:,}", _by_class(run, facts), text])
    text = [
        f"{FACTS.get(key, key)}: {value}."
        for key, value in run.data.items()
        if key not in ("fingerprint", "fold" if run.folds else "") and isinstance(value, (str, int, float))
    ]
    if run.data.get("fingerprint"):
        prints = ", ".join(str(part.data.get("fingerprint", "unknown"))[:16] for part in parts)
        text.append(f"Fingerprint of the training and validation bags{' of each fold' if run.folds else ''}: {prints}.")
    text += protocol_text(run)
    return Section(
        "Data, splits and protocol", text=text, tables=[Table(columns, rows, note="Instances: median (range).")]
    )


def _by_class(run: Run, facts: Mapping[str, Any]) -> str:
    counts = facts.get("classes")
    if isinstance(counts, dict):
        names = run.class_names
        return ", ".join(f"{n:,} of {names[int(c)] if int(c) < len(names) else c}" for c, n in counts.items())
    positives = facts.get("positives")
    return f"{positives:,} positive" if isinstance(positives, int) else "–"


def configuration_section(run: Run) -> Section:
    """The resolved configuration and the versions, folded away."""
    return Section("Configuration", folded=[
        FoldedText("Full configuration (config.json)", json.dumps(run.config, indent=2, ensure_ascii=False)),
        FoldedText("Versions", json.dumps(run.versions, indent=2, ensure_ascii=False)),
    ])  # fmt: skip

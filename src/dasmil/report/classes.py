"""Of more than two classes: how well each is told from the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dasmil.report.page import Cell, Column, Section, Table
from dasmil.report.words import bags_text, decimal, interval_text
from dasmil.stats import class_set, mean_over_sets
from dasmil.vocabulary import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dasmil.runs import Predictions, Run

FIGURES = ("auroc", "sensitivity", "specificity")


def classes_section(run: Run, split: str) -> Section:
    """AUROC, sensitivity and specificity of every class against the rest; empty of two classes."""
    title = "Every class against the rest"
    parts = [seeds for part in run.parts if (seeds := part.per_seed(split))]
    if run.classes < 3 or not parts:
        return Section(title)
    rows: list[list[str | Cell]] = []
    for number, name in enumerate(run.class_names):
        found = _figures(parts, number)
        bags = {bag for seeds in parts for bag, label in zip(seeds[0].bag_ids, seeds[0].labels) if label == number}
        cells = [Cell(decimal(value), interval_text(ends)) for value, ends in found]
        rows.append([name, f"{len(bags):,}", *cells])
    columns = [Column("Class"), Column("Bags", True), *(Column(METRICS[name].title, True) for name in FIGURES)]
    every = {bag for seeds in parts for bag in seeds[0].bag_ids}
    owners = {patient for seeds in parts for patient in seeds[0].patients}
    over = "folds" if run.folds else "seeds"
    note = (
        f"{split}, {bags_text(len(every), len(owners))}. Mean over {over}; below it the 95 % interval over patients. "
        "AUROC by the probability of the class; sensitivity and specificity where the most probable class is predicted."
    )
    return Section(title, tables=[Table(columns, rows, note=note)])


def _figures(parts: Sequence[Sequence[Predictions]], number: int) -> list[tuple[float | None, list[float] | None]]:
    """Value and interval of every figure of one class; parts: of each fold the predictions of its seeds."""
    by_probability, by_choice = [], []
    for seeds in parts:
        known = seeds[0].labels >= 0
        truth = (seeds[0].labels[known] == number).astype(np.int64)
        patients = [patient for patient, there in zip(seeds[0].patients, known) if there]
        if not 0 < truth.sum() < len(truth):
            continue  # a fold without the class, or of this class alone, has no such figures
        cut = [0.5] * len(seeds)
        scores = [seed.probabilities[known, number] for seed in seeds]
        chosen = [(seed.probabilities[known].argmax(1) == number).astype(np.float64) for seed in seeds]
        by_probability.append(class_set(truth, scores, cut, patients))
        by_choice.append(class_set(truth, chosen, cut, patients))
    if not by_probability:
        return [(None, None)] * len(FIGURES)
    scored, decided = mean_over_sets(by_probability), mean_over_sets(by_choice)
    sides = [scored if name == "auroc" else decided for name in FIGURES]
    return [(side["mean"][name], side["interval"][name]) for side, name in zip(sides, FIGURES, strict=True)]

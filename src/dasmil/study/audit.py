"""Audit of a run of another tool from its splits and predictions: leaks, duplicates, choices made on test bags."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dasmil.data.given_splits import SETS, GivenFold, GivenPredictions, same_name
from dasmil.errors import DataError, InputError, named
from dasmil.files import replacing
from dasmil.stats import auroc, choose_threshold, class_set, mean_over_sets

Level = Literal["error", "warning"]
TCGA_SITE, TCGA_PATIENT = 7, 12
"""Letters of a TCGA barcode that name the hospital, and the patient."""
HALF = 0.5


@dataclass(frozen=True)
class AuditFinding:
    """Something that makes figures doubtful: an error biases them, a warning may."""

    level: Level
    name: str
    fold: str
    message: str


@dataclass(frozen=True)
class Audit:
    """findings, worst first; auroc: of every fold, mean over folds and its 95 % interval over patients."""

    findings: Sequence[AuditFinding]
    folds: int
    slides: int
    patients: int
    auroc: Mapping[str, float] = field(default_factory=dict)
    mean: float = float("nan")
    interval: tuple[float, float] = (float("nan"), float("nan"))

    @property
    def sound(self) -> bool:
        """Whether nothing was found that biases the figures."""
        return not any(one.level == "error" for one in self.findings)

    def record(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "sound": self.sound, "folds": self.folds, "slides": self.slides, "patients": self.patients,
            "findings": [vars(one) for one in self.findings],
            "auroc": {"folds": dict(self.auroc), "mean": self.mean, "interval": list(self.interval)},
        }  # fmt: skip

    def write(self, path: str | Path) -> Path:
        """One CSV row for each finding."""
        with replacing(Path(path)) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["level", "name", "fold", "message"])
            writer.writerows([one.level, one.name, one.fold, one.message] for one in self.findings)
        return Path(path)


def audit(
    folds: Sequence[GivenFold],
    predictions: Sequence[GivenPredictions] = (),
    *,
    patients: Mapping[str, str] | None = None,
    sites: Mapping[str, str] | None = None,
) -> Audit:
    """Check the folds and predictions of another tool, as `dasmil audit`.

    patients, sites: of every slide, by its name; TCGA barcodes say their patient and site themselves, other slides
    without a patient are their own.
    """
    if predictions and len(predictions) not in (1, len(folds)):
        raise InputError(
            f"{len(predictions)} tables of predictions for {len(folds)} folds: give one for each fold, or a single one"
        )
    who, where = _Owner(patients or {}, TCGA_PATIENT), _Owner(sites or {}, TCGA_SITE)
    found: list[AuditFinding] = []
    for fold in folds:
        found += _leaks(fold, who, where if sites or _all_tcga(fold) else None)
    every = [name for fold in folds for s in SETS for name in fold.sets.get(s, ())]
    aurocs: dict[str, float] = {}
    sets = []
    for number, one in enumerate(predictions):
        fold = folds[number] if len(predictions) == len(folds) else None
        found += _of_predictions(one, fold, folds)
        aurocs[fold.name if fold else one.name] = float(auroc(one.scores, one.labels == 1)[0])
        spread = one.scores.max() - one.scores.min()
        ranks = (one.scores - one.scores.min()) / (spread or 1.0)
        sets.append(class_set(one.labels, [ranks], [0.5], [who.of(name) for name in one.names]))
    scored = mean_over_sets(sets) if sets else None
    return Audit(
        sorted(found, key=lambda one: (one.level != "error", one.name)),
        len(folds), len({same_name(name) for name in every}), len({who.of(name) for name in every}),
        aurocs,
        float("nan") if scored is None else scored["mean"]["auroc"],
        (float("nan"), float("nan")) if scored is None else tuple(scored["interval"]["auroc"]),
    )  # fmt: skip


class _Owner:
    """The patient (or site) of a slide, from a table or its TCGA barcode."""

    def __init__(self, table: Mapping[str, str], letters: int) -> None:
        self.table, self.letters = {same_name(name): value for name, value in table.items()}, letters

    def of(self, name: str) -> str:
        plain = same_name(name)
        if plain in self.table:
            return self.table[plain]
        return plain[: self.letters] if plain.startswith("TCGA-") else plain


def _all_tcga(fold: GivenFold) -> bool:
    return all(name.startswith("TCGA-") for s in SETS for name in fold.sets.get(s, ()))


def _leaks(fold: GivenFold, who: _Owner, where: _Owner | None) -> list[AuditFinding]:
    """What is on both sides of a fold, or twice in a set."""
    found: list[AuditFinding] = []

    def add(level: Level, name: str, message: str) -> None:
        found.append(AuditFinding(level, name, fold.name, message))

    sets = {s: list(fold.sets.get(s, ())) for s in SETS}
    plain = {s: {same_name(name) for name in names} for s, names in sets.items()}
    what = "patients" if fold.patients else "slides"
    if not sets["train"] or not sets["test"]:
        raise DataError(f"fold {fold.name} has {len(sets['train'])} training and {len(sets['test'])} test {what}")
    for s, names in sets.items():
        if (more := len(names) - len(plain[s])) > 0:
            twice = [name for name, count in Counter(map(same_name, names)).items() if count > 1]
            add("warning", "duplicates", f"{more} rows repeat {what} in {s}: {named(twice)}")
    if not sets["val"]:
        add(
            "warning", "no validation set",
            f"no validation set: an epoch or a threshold that was chosen by scores was chosen on test {what}",
        )  # fmt: skip
    for first, second in (("train", "test"), ("val", "test"), ("train", "val")):
        level: Level = "error" if second == "test" else "warning"
        if both := sorted(plain[first] & plain[second]):
            add(level, f"{what} on both sides", f"{len(both)} {what} are in {first} and {second}: {named(both)}")
        patients = sorted({who.of(n) for n in sets[first]} & {who.of(n) for n in sets[second]})
        if patients and not fold.patients and set(patients) != set(both):
            text = f"{len(patients)} patients have slides in {first} and {second}: {named(patients)}"
            add(level, "patients on both sides", text)
    if where is not None:
        shared = {where.of(n) for n in sets["train"]}
        share = np.mean([where.of(n) in shared for n in sets["test"]])
        if share > 0:
            add(
                "warning", "sites on both sides",
                f"{share:.0%} of the test {what} come from sites of training {what}: scores say nothing of new sites",
            )  # fmt: skip
    return found


def _of_predictions(one: GivenPredictions, fold: GivenFold | None, folds: Sequence[GivenFold]) -> list[AuditFinding]:
    """Predictions of slides that are no test slides, missing ones, and a threshold that fits the test labels best."""
    found: list[AuditFinding] = []

    def add(level: Level, name: str, message: str) -> None:
        found.append(AuditFinding(level, name, fold.name if fold else one.name, message))

    predicted, asked = {same_name(name) for name in one.names}, [fold] if fold else folds
    test = {same_name(n) for f in asked for n in f.sets["test"]}
    known = {same_name(n) for f in asked for s in ("train", "val") for n in f.sets.get(s, ())}
    if (more := len(one.names) - len(predicted)) > 0:
        add("error", "predicted twice", f"{more} rows of predictions repeat a slide: it counts twice")
    if seen := sorted(predicted & known - test):
        text = f"{len(seen)} scored slides are training or validation slides: {named(seen)}"
        add("error", "training slides scored", text)
    if missing := sorted(test - predicted):
        text = f"{len(missing)} of {len(test)} test slides have no prediction: {named(missing)}"
        add("warning", "test slides missing", text)
    if one.chosen is None or len(np.unique(one.labels)) < 2 or len(np.unique(one.chosen)) < 2:
        return found
    low, high = float(one.scores[one.chosen == 0].max()), float(one.scores[one.chosen == 1].min())
    if low >= high:
        add("warning", "no single threshold", "the predicted classes do not follow from one threshold on the scores")
    elif not low < HALF <= high and low < choose_threshold(one.labels, np.clip(one.scores, 0, 1)) <= high:
        add(
            "warning", "threshold fits test",
            f"the threshold lies between {low:.3f} and {high:.3f}, where the balanced accuracy of these test slides is "
            "highest: was it chosen on them?",
        )  # fmt: skip
    return found

"""Default training: a library of candidates, judged by out-of-fold loss per patient; the simplest good one is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from dasmil.candidates.evidence import Evidence, evidence_of
from dasmil.candidates.folds import patient_folds, patient_weights
from dasmil.candidates.linear import LINEAR, Reader
from dasmil.candidates.objective import Objective, objective_of
from dasmil.candidates.ridge import Coordinates, cross_fitted, fit_line
from dasmil.candidates.selection import Selection, select
from dasmil.errors import DataError
from dasmil.models.base import MILModel
from dasmil.models.combined import ModelSum
from dasmil.train.feed import Feed
from dasmil.train.loss import Loss
from dasmil.train.networks import ENOUGH, Attention, NetworkFit, Setting, train_ab_mil, train_das_mil

Array = NDArray[np.float64]
Note = Callable[[str], None]
NETWORKS = {
    "ab-mil": ("Attention over single instances (AB-MIL)", False),
    "das-mil near": ("DAS-MIL begun from a near pair of types", True),
    "das-mil within": ("DAS-MIL begun from how many instances lie near others", True),
    "das-mil count": ("DAS-MIL begun from how many pairs there are", True),
}
"""Trained candidates by name, after all linear ones: what they are called, and whether they use positions."""


@dataclass(frozen=True, eq=False)
class Library:
    """Everything that default training learned from the training bags of one seed."""

    model: MILModel
    outputs: Array
    """Out-of-fold outputs of the kept candidate, calibrated [bags, outputs]."""
    selected: Selection
    scores: dict[str, float]
    seconds: dict[str, float]
    evidence: Evidence
    epochs: dict[str, int] = field(default_factory=dict)

    def record(self) -> dict[str, object]:
        """What candidates.json has of it."""
        constant = self.selected.losses["constant"]
        rows = [
            {
                "name": name, "title": title_of(name), "spatial": is_spatial(name), "loss": loss / constant,
                "error": self.selected.errors[name] / constant, "score": self.scores[name],
                "seconds": self.seconds.get(name, 0.0), **({"epoch": self.epochs[name]} if name in self.epochs else {}),
            }
            for name, loss in self.selected.losses.items() if name != "constant"
        ]  # fmt: skip
        return {
            "selected": self.selected.name, "weight": self.selected.weight, "candidates": rows,
            "evidence": self.evidence.record(),
        }  # fmt: skip


def title_of(name: str) -> str:
    """What a candidate is called in text."""
    return next((c.title for c in LINEAR if c.name == name), None) or NETWORKS[name][0]


def is_spatial(name: str) -> bool:
    """Whether a candidate uses positions."""
    return next((c.spatial for c in LINEAR if c.name == name), None) or NETWORKS.get(name, ("", False))[1]


def train_library(feed: Feed, *, seed: int = 0, memory_gb: float = 1.0, note: Note = lambda text: None) -> Library:
    """Fit all candidates to these bags, keep one, and refit it to all of them."""
    facts = feed.facts
    objective = objective_of(facts.task, facts.targets)
    patients = facts.patients
    folds = patient_folds(objective, patients, seed=seed)
    if not folds:
        raise DataError(
            f"{len(set(patients))} patients are too few to judge candidates by cross-validation, expected at least 4 "
            "with 2 of every class: add patients, or train one model with --model mean-pool"
        )
    constant = np.zeros((len(patients), objective.outputs))
    for fold in folds:
        constant[fold.held] = _constant(objective.part(fold.rest), [patients[i] for i in fold.rest])
    placed = has_positions(feed)
    if not placed:
        note("All instances of a bag lie at one place: positions cannot play a part.")
    outputs: dict[str, Array] = {}
    seconds: dict[str, float] = {}
    began = time.process_time()
    reader = Reader.fitted(feed.bags)
    numbers = {name: rows for name, rows in reader.numbers(feed.bags).items() if placed or not is_spatial(name)}
    read = (time.process_time() - began) / max(1, len(numbers))
    for name, rows in numbers.items():
        began = time.process_time()
        outputs[name] = cross_fitted(Coordinates.of(rows).rows, objective, patients, folds)
        seconds[name] = time.process_time() - began + read
        note(f"Candidate {title_of(name)}: {_told(objective, outputs[name], constant)}")
    trained: dict[str, NetworkFit] = {}
    usual = _mean_loss(objective, constant)
    setting = Setting(feed, objective, Loss(facts.task, facts.targets, balance=False), folds, usual, seed)
    for name, train in _networks(setting, reader, placed, memory_gb):
        if min(_mean_loss(objective, found) for found in outputs.values()) < ENOUGH * usual:
            break  # nothing is left to gain for richer candidates
        began = time.process_time()
        found = train()
        seconds[name] = time.process_time() - began
        if found is None:
            note(f"Candidate {title_of(name)}: not trained, its rule is no better than a constant guess")
            continue
        trained[name], outputs[name] = found, found.outputs
        note(f"Candidate {title_of(name)}: {_told(objective, found.outputs, constant)}")
    selected = select(outputs, constant, objective, patients)
    kept = outputs[selected.name]
    calibrated = constant + np.array(selected.bias) + selected.weight * (kept - constant)
    base = _constant(objective, patients)
    if selected.name in trained:
        members = trained[selected.name].models
    else:
        members = [reader.model(selected.name, numbers[selected.name], objective, patients)]
    scores = {name: objective.score(rows) for name, rows in outputs.items()}
    tested = [outputs[name] for name in trained] if selected.name in trained else []
    evidence = evidence_of(numbers, objective, patients, tested, constant, seed)
    model = _model(members, selected, base, feed, setting.shape)
    epochs = {name: found.epoch for name, found in trained.items()}
    return Library(model, calibrated, selected, scores, seconds, evidence, epochs)


def has_positions(feed: Feed) -> bool:
    """Whether the instances of some bag lie at different places."""
    return any(bool((bag.coords != bag.coords[:1]).any()) for bag in (feed.bags[i] for i in range(len(feed.bags))))


def _networks(
    setting: Setting, reader: Reader, placed: bool, memory_gb: float
) -> list[tuple[str, Callable[[], NetworkFit | None]]]:
    """Trained candidates by name, each begun when it is its turn."""
    found: list[tuple[str, Callable[[], NetworkFit | None]]] = [("ab-mil", lambda: train_ab_mil(setting, memory_gb))]
    if not placed:
        return found
    known: list[Attention] = []

    def attention() -> Attention:
        if not known:
            known.append(Attention.of(setting.feed, reader.directions, memory_gb))
        return known[0]

    task = setting.feed.facts.task
    kinds = ("near", "within", "count") if task.kind == "regression" else ("near", "within")
    for kind in kinds:
        found.append((f"das-mil {kind}", lambda kind=kind: train_das_mil(setting, attention(), kind)))
    return found


def _model(
    members: Sequence[MILModel], selected: Selection, base: Array, feed: Feed, shape: dict[str, int]
) -> MILModel:
    """base + bias + weight (mean of the members - base)."""
    bias = base * (1 - selected.weight) + np.array(selected.bias)
    common = {"in_features": feed.facts.feature_shape[0], "unit": feed.facts.unit, **shape}
    weights = [(selected.weight / len(members), member.cpu()) for member in members]
    return ModelSum.of(weights, torch.from_numpy(bias).float(), common)


def _constant(objective: Objective, patients: Sequence[str]) -> Array:
    """The constant outputs with the lowest loss."""
    return fit_line(np.zeros((len(patients), 1)), objective, patient_weights(patients), 1.0).constant


def _mean_loss(objective: Objective, outputs: Array) -> float:
    return float(objective.losses(outputs).mean())


def _told(objective: Objective, outputs: Array, constant: Array) -> str:
    share = _mean_loss(objective, outputs) / _mean_loss(objective, constant)
    return f"out-of-fold loss {share:.3f} of a constant guess, ranking {objective.score(outputs):.3f}"

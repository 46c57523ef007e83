"""Does space matter? The same bags with moved coordinates, and what that does to the AUROC."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from dasmil.errors import DataError, InputError
from dasmil.stats import auroc, class_patients, honest_interval, interval, resampled
from dasmil.types import Bag

if TYPE_CHECKING:
    from dasmil.models.base import MILModel

Change = Callable[[Tensor, torch.Generator], Tensor]


def _shuffle(coords: Tensor, generator: torch.Generator) -> Tensor:
    return coords[torch.randperm(len(coords), generator=generator)]


def _scale(factor: float) -> Change:
    return lambda coords, _: coords.mean(0) + factor * (coords - coords.mean(0))


def _rotate(degrees: float) -> Change:
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))

    def change(coords: Tensor, _: torch.Generator) -> Tensor:
        centre = coords.mean(0)
        x, y = (coords - centre)[:, 0], (coords - centre)[:, 1]
        return centre + torch.stack([c * x - s * y, s * x + c * y, *(coords - centre)[:, 2:].T], 1)

    return change


def _mirror(coords: Tensor, _: torch.Generator) -> Tensor:
    flip = torch.ones_like(coords)
    flip[:, 0] = -1
    return coords.mean(0) + flip * (coords - coords.mean(0))


CHANGES: dict[str, Change] = {
    "shuffle": _shuffle,
    "scale x0.5": _scale(0.5),
    "scale x2": _scale(2.0),
    "rotate 90": _rotate(90.0),
    "rotate 30": _rotate(30.0),
    "mirror": _mirror,
}
"""Every change is about the centre of the bag, or of each section of it; `shuffle` deals the positions out anew among
the instances."""


@dataclass(frozen=True)
class SpaceResult:
    """AUROC with changed coordinates, and its difference from the unchanged one with a paired 95 % interval."""

    change: str
    auroc: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class SpaceTest:
    """auroc and its 95 % interval with the coordinates as they are (mean over models), then one row per change."""

    n_bags: int
    n_patients: int
    n_models: int
    auroc: float
    low: float
    high: float
    rows: tuple[SpaceResult, ...]


def _macro_auroc(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """logits [n] or [n, k]: for more than two classes the mean over one class against the rest, by probability."""
    if logits.ndim == 1:
        return auroc(logits, labels == 1, weights)
    scores = softmax(logits, axis=1)
    return np.mean([auroc(scores[:, c], labels == c, weights) for c in range(scores.shape[1])], axis=0)


def _changed(bag: Bag, change: Change, generator: torch.Generator) -> Tensor:
    """The bag's coordinates after a change; every section has a frame of its own and is changed for itself."""
    if bag.section is None:
        return change(bag.coords, generator)
    coords = bag.coords.clone()
    for section in bag.section.unique():
        inside = bag.section == section
        coords[inside] = change(coords[inside], generator)
    return coords


def _logits(models: Sequence[MILModel], bags: Sequence[Bag], change: Change | None, seed: int) -> np.ndarray:
    """Logits [models, bags] (or [models, bags, classes]); every bag is read once, for all models."""
    generator = torch.Generator().manual_seed(seed)
    dtypes = [next(iter(model.parameters())).dtype for model in models]
    columns = []
    with torch.inference_mode():
        for bag in bags:
            place = bag.coords if change is None else _changed(bag, change, generator)
            columns.append(
                torch.stack(
                    [
                        model.eval()(bag.features.to(dtype), place.to(dtype), section=bag.section).logit.double()
                        for model, dtype in zip(models, dtypes, strict=True)
                    ]
                )
            )
    return torch.stack(columns, 1).numpy()


def space_test(models: Sequence[MILModel], bags: Sequence[Bag], **options: Any) -> SpaceTest:
    """Score labelled bags with their coordinates changed; models are seeds of one kind, their AUROCs are averaged."""
    return space_test_folds([(models, bags)], **options)


def space_test_folds(
    parts: Sequence[tuple[Sequence[MILModel], Sequence[Bag]]],
    *,
    changes: Sequence[str] = tuple(CHANGES),
    resamples: int = 2000,
    repeats: int = 5,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> SpaceTest:
    """The space test where every fold scores the bags that it held out: the mean of the folds' and seeds' AUROCs.

    Folds whose bags are all of one class have no AUROC and are left out.
    The interval comes from one bootstrap over patients (a bag without one is its own) that both sides of a difference
    share, fold by fold; `shuffle` is the mean over `repeats` deals.
    """
    unknown = [name for name in changes if name not in CHANGES]
    if unknown:
        raise InputError(f"unknown change {unknown[0]!r} of coordinates, known: {', '.join(CHANGES)}")
    known = [[(bag.bag_id, bag.label, bag.patient_id or bag.bag_id) for bag in bags] for _, bags in parts]
    used = _with_two_classes(known)
    kept = [parts[k] for k in used]
    labels = [np.array([label for _, label, _ in known[k]]) for k in used]
    patients = [patient for k in used for _, _, patient in known[k]]
    fold = np.repeat(np.arange(len(used)), [len(known[k]) for k in used])
    weights = np.concatenate(list(resampled(fold, patients, resamples, seed)))

    def evaluate(change: Change | None, n_repeats: int) -> tuple[float, np.ndarray]:
        points, draws = [], []
        for number, (models, bags) in enumerate(kept):
            mine = weights[:, fold == number]
            for repeat in range(n_repeats):
                for scores in _logits(models, bags, change, seed + repeat):
                    points.append(_macro_auroc(scores, labels[number], None)[0])
                    draws.append(_macro_auroc(scores, labels[number], mine))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a draw of one class in every fold has no AUROC
            return float(np.mean(points)), np.nanmean(draws, axis=0)

    if progress:
        progress("as it is")
    base, base_draws = evaluate(None, 1)
    rows = []
    for name in changes:
        if progress:
            progress(name)
        value, draws = evaluate(CHANGES[name], repeats if name == "shuffle" else 1)
        low, high = interval(draws - base_draws)
        rows.append(SpaceResult(name, value, value - base, low, high))
    classes = max(2, 1 + max(int(y.max()) for y in labels))
    folds = [class_patients(y, [row[2] for row in known[k]], classes) for y, k in zip(labels, used, strict=True)]
    low, high = honest_interval("auroc", base, interval(base_draws), folds)
    n_models = sum(len(models) for models, _ in kept)
    return SpaceTest(len(patients), len(set(patients)), n_models, base, low, high, tuple(rows))


def _with_two_classes(known: Sequence[Sequence[tuple[str, int | None, str]]]) -> list[int]:
    """The folds that have an AUROC; known: id, label and patient of the bags of every fold."""
    every = [row for rows in known for row in rows]
    missing = [bag_id for bag_id, label, _ in every if label is None]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(every)} bags have no label, the first is {missing[0]!r}: "
            "the space test needs labels"
        )
    used = [k for k, rows in enumerate(known) if len({label for _, label, _ in rows}) > 1]
    if not used:
        first = every[0][1] if every else "-"
        where = "in every fold" if len(known) > 1 else f"{first}"
        raise DataError(f"all {len(every)} bags have the label {where}: an AUROC needs two classes")
    return used

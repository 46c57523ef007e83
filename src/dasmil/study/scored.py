"""Runs as `compare` sees them: what every seed reached on a split, fold by fold, whatever the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from dasmil.errors import DataError
from dasmil.runs import Run
from dasmil.stats import FollowUp, harrell, probabilities
from dasmil.stats.compared import Figure, ScoredPart, class_part
from dasmil.tasks import Task, TimeTarget

if TYPE_CHECKING:
    from dasmil.types import Bag

Array = NDArray[np.float64]


def metric_of(run: Run) -> str:
    """The metric that a run's task is compared by."""
    return run.asked.main


def scored_parts(run: Run, split: str) -> list[ScoredPart]:
    """What a run's seeds said about a split, fold by fold, in the order of the names of the bags."""
    parts = []
    for part in run.parts:
        if part.task is not None:
            parts.append(_task_part(part, part.task, split))
            continue
        per_seed = [seed.predictions(split) for seed in part.seeds.values()]
        order = np.argsort(np.array(per_seed[0].bag_ids))
        patients = [per_seed[0].patients[i] for i in order]
        parts.append(class_part(per_seed[0].labels[order], patients, [p.probabilities[order] for p in per_seed]))
    return parts


def _task_part(part: Run, task: Task, split: str) -> ScoredPart:
    per_seed = part.answers(split)
    order = np.argsort(np.array(per_seed[0].bag_ids))
    patients = [per_seed[0].patients[i] for i in order]
    values = per_seed[0].values[order]
    return _answered(task, values, patients, [answers.outputs[order] for answers in per_seed])


def _answered(task: Task, values: Array, patients: Sequence[str], outputs: Sequence[Array]) -> ScoredPart:
    """Bags whose task is no class: values [n, columns], of each seed the outputs of its model [n, outputs]."""
    target = task.targets[0]

    def figure(out: Array) -> Figure:
        if isinstance(target, TimeTarget):  # alone, without the figures of Brier and Uno that cost more
            follow, risk = FollowUp(values[:, 0], values[:, 1] == 1), target.risk(out)
            return lambda weights: harrell(follow, risk, weights)
        said = task.said(out)
        return lambda weights: task.figures(values, said, weights)[task.main]

    return ScoredPart(values, task.strata(values), patients, [figure(out) for out in outputs])


def scored_again(run: Run, bags: Sequence[Bag], kind: str, known: ScoredPart, seed: int) -> ScoredPart:
    """The bags of one fold, shuffled; the same change for all seeds and models."""
    models = run.models()
    rows: dict[str, list[Array]] = {}
    for number, bag in enumerate(bags):
        changed = shuffled(bag, kind, seed + number)
        with torch.inference_mode():
            rows[bag.bag_id] = [
                model(changed.features, changed.coords, section=changed.section).logit.double().numpy()
                for model in models
            ]
    order = sorted(rows)
    if len(order) != len(known.strata):
        raise DataError(
            f"{run.path} scored {len(known.strata)} bags, {len(order)} are found now: the cohort has changed"
        )
    logits = [np.stack([rows[bag][m] for bag in order]) for m in range(len(models))]
    if run.task is not None:
        return _answered(run.task, known.truth, known.patients, [out.reshape(len(order), -1) for out in logits])
    scores = [probabilities(out, model.n_classes) for out, model in zip(logits, models, strict=True)]
    return class_part(known.truth, known.patients, scores)


def shuffled(bag: Bag, kind: str, seed: int) -> Bag:
    """The bag with positions dealt out anew within each section ("coords"), or its rows in another order ("rows")."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "rows":
        order = torch.randperm(len(bag), generator=generator)
        section = None if bag.section is None else bag.section[order]
        return replace(
            bag, features=bag.features[order], coords=bag.coords[order], section=section, instance_labels=None,
            key_instances=None, instance_ids=None,
        )  # fmt: skip
    coords = bag.coords.clone()
    sections = torch.zeros(len(bag), dtype=torch.int64) if bag.section is None else bag.section
    for number in sections.unique():
        inside = torch.nonzero(sections == number)[:, 0]
        coords[inside] = bag.coords[inside[torch.randperm(len(inside), generator=generator)]]
    return replace(bag, coords=coords)

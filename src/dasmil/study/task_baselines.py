"""Baselines beside a run whose task is no single class: ridge regressions on a few numbers of a bag."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasmil.candidates.linear import Reader
from dasmil.candidates.objective import objective_of
from dasmil.candidates.ridge import Coordinates, fit_chosen
from dasmil.errors import InputError
from dasmil.runs import Answers, Run, baseline_answers, baseline_record, write_baselines
from dasmil.runs.predictions import prediction_rows
from dasmil.stats import ScoredSet, difference_of_sets
from dasmil.study.task_folds import FoldAnswers, answers_over_folds
from dasmil.tasks import summarise_outputs
from dasmil.types import Bag

Array = NDArray[np.float64]
RULES = {
    "mean": ("Mean features", "the mean features of a bag, by a ridge regression"),
    "composition": ("Composition", "the shares of the types of instances, by a ridge regression"),
    "contacts": ("Contacts", "how often two types of instances are neighbours, by a ridge regression"),
}
"""Name: title, and what a rule sees. Types of instances are centres of k-means; of cell types the types themselves."""


def score_task_baselines(
    run: Run, train: Sequence[Bag], sets: Mapping[str, Sequence[Bag]], mark: str, stored: Collection[str] = ()
) -> None:
    """Fit every rule to the training bags of a plain run, and store its scores on these sets.

    stored: rules that were scored on other sets before, which stay.
    """
    if train[0].features.ndim != 2:
        raise InputError("the bags hold pictures, and rules beside this task read vectors of features")
    reader = Reader.fitted(train, names=RULES)
    known = run.answers("train")[0]
    objective = objective_of(run.asked, known.values)
    rows, outputs = _in_order(known, train, reader), {}
    given = {name: (own := run.answers(name)[0], _in_order(own, bags, reader)) for name, bags in sets.items()}
    for name, numbers in rows.items():
        where = Coordinates.of(numbers)
        line = fit_chosen(where.rows, objective, known.patients)
        old = baseline_answers(run.path, name) if name in stored else {}
        outputs[name] = {split: own for split, own in old.items() if split in run.summary["splits"]} | {
            split: replace(own, outputs=line.outputs((x[name] - where.centre) @ where.back, objective))
            for split, (own, x) in given.items()
        }
    found = {name: _described(name) | _scores(run, known.values, splits) for name, splits in outputs.items()}
    predictions = {
        name: [
            row
            for split, own in splits.items()
            for row in prediction_rows(run.asked, split, own.bag_ids, own.patient_ids, own.values, own.outputs)
        ]
        for name, splits in outputs.items()
    }
    write_baselines(run.path, mark, found, predictions)


def _described(name: str) -> dict[str, str]:
    title, sees = RULES[name]
    return {"title": title, "sees": sees}


def _in_order(known: Answers, bags: Sequence[Bag], reader: Reader) -> dict[str, Array]:
    """The numbers of every rule, in the order in which the run scored the bags."""
    ids = getattr(bags, "bag_ids", None) or [bag.bag_id for bag in bags]
    place = {bag_id: i for i, bag_id in enumerate(ids)}
    order = [place[bag_id] for bag_id in known.bag_ids]
    return {name: values[order] for name, values in reader.numbers(bags).items()}


def _scores(run: Run, reference: Array, splits: Mapping[str, Answers]) -> dict[str, Any]:
    task = run.asked
    scores, against = {}, {}
    for split, own in splits.items():
        scores[split] = summarise_outputs(task, own.values, [own.outputs], own.patients, reference)
        models = FoldAnswers(task, reference, run.answers(split))
        against[split] = difference_of_sets(
            [(_main(models, task.main), _main(FoldAnswers(task, reference, [own]), task.main))], task.main
        )
    return {"splits": scores, "against": against}


def _main(bags: FoldAnswers, metric: str) -> ScoredSet:
    """The bags, scored by the main metric."""
    whole = bags.scored()[""]
    return replace(whole, runs=[lambda w, run=run: {metric: run(w)[metric]} for run in whole.runs])


def summarise_task_folds(out: Path, folders: Sequence[Path]) -> None:
    """The rules of a cross-validation: means over folds, as the model's are, and paired differences."""
    runs, records = [Run.read(folder) for folder in folders], [baseline_record(folder) for folder in folders]
    metric = runs[0].asked.main
    found: dict[str, dict[str, Any]] = {}
    for name, rule in records[0]["baselines"].items():
        own = [baseline_answers(folder, name) for folder in folders]
        splits, against = {}, {}
        for split in rule["splits"]:
            if any(split not in record["baselines"][name]["splits"] for record in records):
                continue
            rules = [FoldAnswers.of(run, [fold[split]]) for run, fold in zip(runs, own, strict=True)]
            models = [FoldAnswers.of(run, run.answers(split)) for run in runs]
            per_fold = [record["baselines"][name]["splits"][split]["mean"] for record in records]
            splits[split] = answers_over_folds(per_fold, rules)
            pairs = [(_main(model, metric), _main(rule_, metric)) for model, rule_ in zip(models, rules, strict=True)]
            against[split] = difference_of_sets(pairs, metric)
        found[name] = {"title": rule["title"], "sees": rule["sees"], "splits": splits, "against": against}
    write_baselines(out, ",".join(record["fingerprint"][:16] for record in records), found, {})

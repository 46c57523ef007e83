"""Baselines beside a trained run: fitted on its training bags, scored on the bags it was scored on, fold by fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dasmil.errors import DasmilError
from dasmil.runs import (
    BuiltIn,
    Camelyon16,
    Predictions,
    Run,
    baseline_predictions,
    baseline_record,
    origin_from,
    read_baselines,
    write_baselines,
)
from dasmil.stats import choose_threshold, mean_difference, summarise
from dasmil.study.folds import ScoredRun, over_folds
from dasmil.study.notes import Note, silent
from dasmil.study.task_baselines import score_task_baselines, summarise_task_folds

if TYPE_CHECKING:
    from dasmil.study.rounds import Round
    from dasmil.types import Bag


def add_baselines(out: Path, rounds: Sequence[Round], folders: Sequence[Path], note: Note = silent) -> None:
    """Fit the baselines of every round whose bags are the user's own, and score them as the run in its folder was.

    What is there already, for the same bags and sets, stays. A round that cannot have them (features that are no
    vectors, no held-out bags) is said and left out.
    """
    if any(isinstance(origin_from(part.data), BuiltIn | Camelyon16) for part in rounds):
        return
    if Run.read(folders[0]).out_of_fold:  # default training has simple models among its candidates
        return
    try:
        for part, folder in zip(rounds, folders, strict=True):
            sets = {**({"val": part.val} if part.val is not None else {}), **part.tests}
            score_baselines(Run.read(folder), part.train, sets)
    except DasmilError as error:
        note(f"No baselines: {error}")
        return
    if len(rounds) > 1:
        (_summarise_folds if Run.read(folders[0]).task is None else summarise_task_folds)(out, folders)


def score_baselines(run: Run, train: Sequence[Bag], sets: Mapping[str, Sequence[Bag]]) -> None:
    """Fit on the training bags of a plain run and store scores on those of its held-out sets that are given here."""
    from dasmil.baselines import BASELINES, fit_baselines

    mark = str(run.data.get("fingerprint", ""))
    wanted = [name for name in sets if name in run.summary["splits"] and len(sets[name])]
    stored = baseline_record(run.path)
    there = stored["baselines"] if stored["fingerprint"] == mark else {}
    if not wanted or (there and all(set(wanted) <= set(rule["splits"]) for rule in there.values())):
        return
    if run.task is not None:
        score_task_baselines(run, train, {name: sets[name] for name in wanted}, mark, there)
        return
    fitted = fit_baselines(train, _known_labels(train), classes=run.classes)
    scored = {name: _in_order(run, name, sets[name], fitted.predict(sets[name])) for name in wanted}
    found, rows = {}, {}
    for name, rule in BASELINES.items():
        told = {split: (found_[0], found_[1][name]) for split, found_ in scored.items()}
        for split, old in (baseline_predictions(run.path, name) if there else {}).items():
            if split not in told and split in run.summary["splits"]:
                told[split] = (run.per_seed(split)[0], old.probabilities)
        found[name] = {"title": rule.title, "sees": rule.sees, **_scores(run, told)}
        rows[name] = [row for split, (own, p) in told.items() for row in _rows(split, own, p)]
    write_baselines(run.path, mark, found, rows)


def baselines_again(path: Path, sets: Mapping[str, Sequence[Bag]]) -> None:
    """Score the baselines of a plain run, if it has any, on sets that were opened after training.

    They are fitted again on the training bags, which gives the same rules: nothing of them but numbers is stored.
    """
    from dasmil.study.reading import run_cohort

    run = Run.read(path)
    if not read_baselines(path) or all(name not in run.summary["splits"] for name in sets):
        return
    cohort = run_cohort(run.origin)
    numbers = {bag_id: i for i, bag_id in enumerate(cohort.bag_ids)}
    score_baselines(run, cohort.subset(numbers[bag_id] for bag_id in run.answers("train")[0].bag_ids), sets)


def _known_labels(bags: Sequence[Bag]) -> list[int] | None:
    """Labels of a cohort, which knows them without reading its files."""
    labels = getattr(bags, "labels", None)
    return None if labels is None else list(labels)


def _in_order(
    run: Run, split: str, bags: Sequence[Bag], found: Mapping[str, Any]
) -> tuple[Predictions, dict[str, np.ndarray]]:
    """The bags of a split as the run scored them, and what each baseline says of them, in the same order."""
    own = run.per_seed(split)[0]
    ids = getattr(bags, "bag_ids", None) or [bag.bag_id for bag in bags]
    place = {bag_id: i for i, bag_id in enumerate(ids)}
    order = [place[bag_id] for bag_id in own.bag_ids]
    return own, {name: values[order] for name, values in found.items()}


def _scores(run: Run, told: Mapping[str, tuple[Predictions, np.ndarray]]) -> dict[str, Any]:
    """Scores of every split, with a threshold from the validation bags, and the model minus the baseline."""
    threshold = 0.5
    if run.classes == 2 and "val" in told and len(np.unique(told["val"][0].labels)) == 2:
        threshold = choose_threshold(told["val"][0].labels, told["val"][1])
    splits, against = {}, {}
    for split, (own, p) in told.items():
        splits[split] = summarise(own.labels, [p], [threshold], patients=own.patients, ensemble_threshold=threshold)
        models = [seed.probabilities for seed in run.per_seed(split)]
        against[split] = mean_difference([(own.labels, models, [p], own.patients)])
    return {"threshold": threshold, "splits": splits, "against": against}


def _rows(split: str, own: Predictions, p: np.ndarray) -> list[dict[str, Any]]:
    rows = []
    for i, bag_id in enumerate(own.bag_ids):
        row: dict[str, Any] = {"bag_id": bag_id, "split": split, "label": int(own.labels[i])}
        if p.ndim == 1:
            row |= {"logit": _logit(p[i]), "probability": float(p[i]), "prediction": int(p[i] >= 0.5)}
        else:
            row |= {f"logit_{c}": float(np.log(max(v, 1e-12))) for c, v in enumerate(p[i])}
            row |= {f"probability_{c}": float(v) for c, v in enumerate(p[i])}
            row |= {"probability": float(p[i].max()), "prediction": int(p[i].argmax())}
        rows.append({**row, "patient_id": own.patient_ids[i]})
    return rows


def _logit(p: float) -> float:
    p = min(max(float(p), 1e-12), 1 - 1e-12)
    return float(np.log(p / (1 - p)))


def _summarise_folds(out: Path, folders: Sequence[Path]) -> None:
    """The baselines of a cross-validation: means over folds, as the model's are, and paired differences."""
    runs, records = [Run.read(folder) for folder in folders], [baseline_record(folder) for folder in folders]
    found: dict[str, dict[str, Any]] = {}
    for name, rule in records[0]["baselines"].items():
        own = [baseline_predictions(folder, name) for folder in folders]
        common = [split for split in rule["splits"] if all(split in r["baselines"][name]["splits"] for r in records)]
        splits, against = {}, {}
        for split in common:
            per_fold = [record["baselines"][name]["splits"][split] for record in records]
            parts = [ScoredRun.of([fold[split]]) for fold in own]
            thresholds = [[float(record["baselines"][name].get("threshold", 0.5))] for record in records]
            splits[split] = over_folds(per_fold, parts, thresholds)
            models = [ScoredRun.of(run.per_seed(split)) for run in runs]
            against[split] = mean_difference(
                [(m.labels, m.probabilities, b.probabilities, m.patients) for m, b in zip(models, parts, strict=True)]
            )
        found[name] = {"title": rule["title"], "sees": rule["sees"], "splits": splits, "against": against}
    mark = ",".join(record["fingerprint"][:16] for record in records)
    write_baselines(out, mark, found, {})

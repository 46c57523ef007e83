"""A finished run at work: scores on labelled bags and on its locked test set, predictions for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dasmil.data.cohort import Cohort
from dasmil.errors import InputError
from dasmil.models.base import MILModel
from dasmil.report import write_report
from dasmil.runs import OwnCohort, Run, origin_from, read_domain, recalibration_of
from dasmil.stats import probabilities, summarise
from dasmil.stats.decisions import check_prevalence, threshold_for_cost
from dasmil.stats.recalibrate import Recalibration
from dasmil.study.baselines import baselines_again
from dasmil.study.covariates import covariates_again
from dasmil.study.domain import moments
from dasmil.study.external import ExternalOptions, write_external
from dasmil.study.held_out import count_opening, run_sets
from dasmil.study.notes import Note, silent
from dasmil.study.reading import labelled_bags, unlabelled_bags
from dasmil.study.seen import LOCKED, TRAINED, check_alike, refuse_trained, seen_before
from dasmil.study.sets import CLASS, UNKNOWN, RunSets, run_sets_of, set_coverage_text, set_words
from dasmil.study.spec import BagSpec
from dasmil.study.subgroups import run_cells, subgroups_again
from dasmil.study.task_apply import evaluate_task, predict_task
from dasmil.tasks import classification
from dasmil.train.evaluate import model_logits, model_outputs
from dasmil.train.feed import Facts, Feed
from dasmil.train.results import feed_rows
from dasmil.types import Bag

Array = NDArray[np.float64]

MEMORY_GB = 1.0
OTHERS = "bags"
"""The name of a set of other bags than the run's own."""


def evaluate(
    run: Run | str | Path,
    bags: BagSpec | None = None,
    *,
    split: Sequence[str] | None = None,
    mnist_dir: Path | None = None,
    recalibrate: str | None = None,
    out: str | Path | None = None,
    subgroups: Sequence[str] = (),
    prevalence: float | None = None,
    missed_cost: float | None = None,
    note: Note = silent,
) -> dict[str, Any]:
    """Score every seed of a run and their ensemble, in the layout of a run's summary, as `dasmil evaluate` does.

    Example: ``dasmil.evaluate("runs/mine")["splits"]["test"]["mean"]["auroc"]``

    Without bags: on the run's own test sets (or those named in ``split``). A locked one is opened, which is counted,
    and its scores go into the run and its report, unless the run is a cross-validation. bags: others with labels, read
    as those of the run were. Thresholds are those chosen in training. recalibrate: "none" undoes the map that was saved
    with the run, another method fits one in its place. out: with bags, folder for the page of an external validation;
    subgroups, prevalence and missed_cost (false alarms that a missed positive counts) are for this page.
    """
    stored = run if isinstance(run, Run) else Run.read(run)
    external = ExternalOptions(subgroups, check_prevalence(prevalence), missed_cost)
    if out is None and (subgroups or prevalence is not None or missed_cost is not None):
        raise InputError("--subgroups, --prevalence and --missed-cost are for the page of --out: give --out FOLDER too")
    if missed_cost is not None:
        threshold_for_cost(missed_cost)
    if out is not None and stored.task is not None:
        raise InputError(
            f"--out writes a page for runs of classes, and this run has the task {stored.task.kind}: leave --out out"
        )
    if bags is not None:
        if split:
            raise InputError("--split names sets of the run, but --bags gives other bags: leave one of them out")
        cohort = labelled_bags(bags, stored.origin, note)
        check_alike(stored, cohort, bags.accepted)
        seen = seen_before(stored, cohort)
        refuse_trained(seen, cohort, bags.accepted, note)
        if locked := [name for name, what in seen.items() if what == LOCKED]:
            count_opening(stored.origin, stored.path, len(locked), note)
        left_out: dict[str, Any] = {"left_out": cohort.report.unreadable} if cohort.report.unreadable else {}
        if cohort.joined and cohort.report.incomplete:
            left_out["incomplete"] = cohort.report.incomplete
        if seen:
            left_out["seen"] = seen
        summary = evaluate_run(stored, {OTHERS: cohort}, recalibrate=recalibrate)
        if out is not None:
            raw = evaluate_run(stored, {OTHERS: cohort}, recalibrate="none")
            parts, rows = predict_parts(stored, cohort, recalibrate="none")
            rows = _with_distances(stored, cohort, rows)
            write_external(stored, bags, cohort, {**raw, **left_out}, rows, parts, Path(out), external, note)
        return {**summary, **left_out}
    if out is not None:
        raise InputError("--out is for other bags: give --bags and --labels too (the run's own page is its report)")
    sets = run_sets(stored.origin, split, mnist_dir, stored.path, note)
    own = isinstance(origin_from(stored.origin), OwnCohort)
    summary = evaluate_run(Run.read(stored.path), sets, keep=own, recalibrate=recalibrate)
    if own:
        if not stored.folds:
            baselines_again(stored.path, sets)
            covariates_again(stored.path, note)
            subgroups_again(Run.read(stored.path))
        write_report(stored.path)
    return summary


def predict(
    run: Run | str | Path,
    bags: BagSpec | str | Path | Sequence[Bag],
    *,
    recalibrate: str | None = None,
    sets: float | None = None,
    sets_by: str | None = None,
    note: Note = silent,
) -> list[dict[str, Any]]:
    """One row a bag: bag_id, the mean probability over all seeds (and folds), the predicted class, the spread over the
    models, logits, and every class by its name; as `dasmil predict`.

    Example: ``rows = dasmil.predict("runs/mine", "features")``

    bags: a folder or table, read as those of the run were, or bags in memory. The slides of a patient are joined where
    the run was trained so and files or ``slide_table`` say whose they are, or with ``per_patient``. Slides that cannot
    be read are rows without a probability; then every row has a "problem", empty where there is none.
    recalibrate: "none" undoes the map that was saved with the run, another method fits one in its place. sets: coverage
    of prediction sets (column set); sets_by: "class", or a column of the label table whose groups are kept apart; the
    slide table then says the group of these bags. feature_distance and unusual: how far a bag's features lie from those
    of training.
    """
    stored = run if isinstance(run, Run) else Run.read(run)
    if stored.decision is None and stored.classes == 2 and stored.task is None:
        note(
            f"This run is older than the one threshold of a run: classes are given at 0.5 as it did (its report "
            f"decides at {stored.threshold:.3f})"
        )
    if isinstance(bags, (str, Path)):
        bags = BagSpec(bags=Path(bags))
    if sets_by is not None and sets is None:
        raise InputError("--sets-by was given without --sets, the coverage of the prediction sets: give both")
    if not isinstance(bags, BagSpec):
        made = _sets(stored, sets, sets_by, note)
        if sets_by not in (None, CLASS):
            raise InputError(f"sets by {sets_by} need a table with the group of every bag: give a BagSpec")
        return _with_distances(stored, bags, predict_run(stored, bags, recalibrate=recalibrate, sets=made))
    found = unlabelled_bags(bags, stored.origin, note, read_all=True)
    check_alike(stored, found, bags.accepted)
    made = _sets(stored, sets, sets_by, note)
    groups = _groups(bags, found, sets_by) if made is not None and sets_by not in (None, CLASS) else None
    rows = predict_run(stored, found, recalibrate=recalibrate, sets=made, groups=groups)
    rows = _with_distances(stored, found, rows)
    if unusual := [row["bag_id"] for row in rows if row.get("unusual")]:
        note(
            f"Warning: {len(unusual)} of {len(rows)} bags have features unlike those of training, for example "
            f"{unusual[0]} (columns feature_distance, unusual): predictions for them may be wrong"
        )
    if seen := seen_before(stored, found):
        trained = sum(what == TRAINED for what in seen.values())
        note(
            f"Warning: the run was trained on {trained} of these {len(rows)} bags, or on their patients, and keeps "
            f"{len(seen) - trained} locked (column seen): what it says about them is not what it says about new ones"
        )
        rows = [{**row, "seen": seen.get(row["bag_id"], "")} for row in rows]
    problems = _problems(found)
    if not problems:
        return rows
    unknown = [dict.fromkeys(rows[0], "") | {"bag_id": name} for name in problems if name not in set(found.bag_ids)]
    return [{**row, "problem": problems.get(row["bag_id"], "")} for row in [*rows, *unknown]]


def _problems(cohort: Cohort) -> dict[str, str]:
    """What is wrong with a bag, by its name: a slide that cannot be read, a patient of whom a slide is missing."""
    report = cohort.report
    return {name: "; ".join(lines) for name, lines in report.incomplete.items()} if cohort.joined else report.unreadable


def predict_run(
    run: Run,
    bags: Sequence[Bag],
    *,
    recalibrate: str | None = None,
    sets: RunSets | None = None,
    groups: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """One row a bag, from the mean probability over the run's models and the run's threshold.

    bag_id, probability (of class 1, or of the predicted of several), prediction (its number), class (its name, where
    classes have names), probability_sd (standard deviation over the models; None of one), logit (mean over the models;
    of several classes one each), and the probability of every class that has a name. A recalibration changes
    probabilities; the class of two is that at the run's threshold before it. sets: adds the column set.
    """
    if run.task is not None:
        if recalibrate not in (None, "none") or sets is not None:
            raise InputError(f"recalibration and prediction sets are for classes, the run has the task {run.task.kind}")
        return predict_task(run, bags)
    parts, rows = predict_parts(run, bags, recalibrate=recalibrate)
    if sets is None or not rows:
        return rows
    words = set_words(sets.of(parts, groups), run.class_names)
    return [{**row, "set": text} for row, text in zip(rows, words, strict=True)]


def predict_parts(
    run: Run, bags: Sequence[Bag], *, recalibrate: str | None = None
) -> tuple[list[Array], list[dict[str, Any]]]:
    """Probabilities by fold before recalibration (a plain run is one), and the rows of `predict_run`."""
    models = run.models()
    feed = Feed(bags, torch.device("cpu"), memory_gb=MEMORY_GB, name="given", labelled=False)
    check_fits(models[0], feed.facts)
    logits = model_logits(models, feed)
    scored = probabilities(logits, models[0].n_classes)
    names = run.origin.get("classes")
    cut = 0.5 if run.decision is None else run.decision
    fitted = recalibration_of(run, recalibrate)
    mean, shown = scored.mean(0), scored
    told = mean if fitted is None else fitted(mean)
    if fitted is not None:
        shown = fitted(scored)
    rows = [
        {"bag_id": bag_id, **_answer(shown[:, i], told[i], mean[i], logits[:, i].mean(0), cut, names)}
        for i, bag_id in enumerate(feed.facts.ids)
    ]
    ends = np.cumsum([len(part.seeds) for part in run.parts])[:-1]
    return [part.mean(0) for part in np.split(scored, ends)], rows


def _answer(
    scored: Array, mean: Any, before: Any, logit: Any, cut: float, names: Sequence[str] | None
) -> dict[str, Any]:
    """What the models say about one bag: scored [models] or [models, classes], their mean, and it before recalibration.

    logit: [] or [classes]."""
    binary = np.ndim(mean) == 0
    number = int(before >= cut) if binary else int(mean.argmax())
    of_class = scored if binary else scored[:, number]
    found: dict[str, Any] = {"probability": float(mean if binary else mean[number]), "prediction": number}
    if names is not None:
        found["class"] = names[number]
    found["probability_sd"] = float(of_class.std(ddof=1)) if len(of_class) > 1 else None
    every = [1 - float(mean), float(mean)] if binary else mean.tolist()
    called = names if names is not None else list(range(len(every)))
    found |= (
        {"logit": float(logit)} if binary else dict(zip((f"logit_{c}" for c in called), logit.tolist(), strict=True))
    )
    if names is not None or not binary:
        found |= dict(zip((f"probability_{c}" for c in called), every, strict=True))
    return found


def _sets(run: Run, coverage: float | None, by: str | None, note: Note) -> RunSets | None:
    """Prediction sets of a run, with what its own bags say about them."""
    if coverage is None:
        return None
    groups = None
    if by not in (None, CLASS):
        cells = run_cells(run, [by], "--sets-by")[by]
        groups = {bag: cell or UNKNOWN for bag, cell in cells.items()}
    found = run_sets_of(run, coverage, by=by, groups=groups)
    note(set_coverage_text(found.own, coverage, "of the run that did not make them"))
    return found


def _groups(bags: BagSpec, cohort: Cohort, column: str) -> list[str]:
    """The group of every bag from the slide table."""
    from dasmil.data.columns import read_columns

    if bags.slide_table is None:
        raise InputError(f"--sets-by {column} needs --slide-table, a CSV with slide, patient and {column}")
    cells = read_columns(bags.slide_table, [column], option="--sets-by", by_slide=True).of(cohort)
    return [row[column] or UNKNOWN for row in cells]


def _with_distances(run: Run, bags: Sequence[Bag], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the same bags with how far their features lie from those of training, where the run knows these."""
    domain = read_domain(run.path)
    if domain is None or not rows:
        return rows
    distance = domain.distance(moments(bags)[0])
    marks = domain.unusual(distance)
    return [
        {**row, "feature_distance": float(d), "unusual": "yes" if odd else ""}
        for row, d, odd in zip(rows, distance, marks, strict=True)
    ]


def evaluate_run(
    run: Run, sets: Mapping[str, Sequence[Bag]], *, keep: bool = False, recalibrate: str | None = None
) -> dict[str, Any]:
    """Scores of a run's models on labelled sets, in the layout of a run's summary; thresholds as chosen in training.

    keep: also put scores and predictions into the run directory (not of a cross-validation, whose folds have their
    own sets of that name); there they are without recalibration.
    """
    if run.task is not None:
        if recalibrate not in (None, "none"):
            raise InputError(f"recalibration is for classes, and this run has the task {run.task.kind}")
        return evaluate_task(run, sets, keep=keep)
    models = run.models()
    summary = run.summary
    old = run.decision is None
    threshold = {**({"ensemble": run.threshold} if old else {}), **summary["threshold"]}
    thresholds = run.thresholds if old else [run.threshold] * len(models)
    fitted = recalibration_of(run, recalibrate)
    splits, kept, described, rows = {}, {}, {}, [[] for _ in models]
    for name, bags in sets.items():
        feed = Feed(bags, torch.device("cpu"), memory_gb=MEMORY_GB, name=name)
        check_fits(models[0], feed.facts)
        outputs = model_outputs(models, feed)
        task = classification([str(c) for c in range(models[0].n_classes)])
        scored = task.answers(outputs)
        splits[name] = kept[name] = _summary(feed, scored, thresholds, run.threshold)
        if fitted is not None:
            if name != OTHERS:  # the run's own bags: their names are those of the bags that the map was fitted on
                fitted.refuse(feed.facts.ids)
            splits[name] = _recalibrated(feed, fitted, scored, thresholds, run.threshold)
        described[name] = feed.facts.describe()
        for part, values, cut in zip(rows, outputs, thresholds, strict=True):
            part += feed_rows(name, feed, values, task.at(cut))
    if keep and not run.folds:
        run.add_scored(kept, described, rows)
    if fitted is not None and run.classes == 2:
        threshold = {**threshold, "decision": float(fitted(np.array([run.threshold]))[0])}
    return {
        "splits": splits,
        "threshold": threshold,
        **({} if fitted is None else {"recalibration": fitted.method}),
        **({"folds": len(run.folds), "models": len(models)} if run.folds else {}),
        "seeds": list(run.seeds) or list(range(len(models))),
        "stuck_seeds": summary["stuck_seeds"],
        "selection": summary["selection"],
    }


def _summary(feed: Feed, scored: Array, thresholds: Sequence[float], together: float) -> dict[str, Any]:
    facts = feed.facts
    return summarise(facts.labels, list(scored), thresholds, patients=facts.patients, ensemble_threshold=together)


def _recalibrated(
    feed: Feed, fitted: Recalibration, scored: Array, thresholds: Sequence[float], together: float
) -> dict[str, Any]:
    """Scores of recalibrated probabilities; of two classes the thresholds are mapped with them."""
    if scored.ndim == 2:
        *thresholds, together = fitted(np.array([*thresholds, together])).tolist()
    return _summary(feed, fitted(scored), thresholds, together)


def check_fits(model: MILModel, facts: Facts) -> None:
    """Refuse bags whose features or unit are not those of a model."""
    if model.encoder.in_shape != facts.feature_shape:
        raise InputError(
            f"the bags have features of shape {facts.feature_shape} per instance, but the run's {model.name} was made "
            f"for {model.encoder.in_shape}: they must come from the same encoder"
        )
    if model.unit != facts.unit:
        raise InputError(f"the bags' coordinates are in {facts.unit!r}, but the run's model expects {model.unit!r}")

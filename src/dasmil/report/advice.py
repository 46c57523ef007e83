"""What to do when a run detected no signal, or less than a simple rule: commands for the next try, what was tried."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from dasmil.report.page import Column, Section, Table
from dasmil.report.words import plural
from dasmil.runs import Run, Verdict, read_library

DOCTOR = (
    "slide_table", "slide_column", "label_column", "patient_column", "split_column", "site_column", "positive", "mpp",
    "tile_um", "scale_table", "bag_column", "x_column", "y_column", "one_hot", "feature_columns", "unit",
    "task", "time_column", "event_column", "time_unit", "target_columns", "per_patient",
)  # fmt: skip
"""What the doctor takes of the options that a cohort was given with."""
FOLDS = 5
OWN_FLAGS = ("epochs", "lr", "weight_decay", "optimizer", "schedule", "selection", "early_stopping", "device")
"""Settings that `train` has an option for; the rest go through --set."""
BLIND = "mean-pool"  # the model that sees composition and no positions


def advice_section(run: Run, judged: Verdict) -> Section:
    """Commands that are worth running next; empty for runs that need none."""
    title = "What to do next"
    steps = next_steps(run, judged)
    if not steps:
        return Section(title)
    rows = [[why, command] for why, command in steps]
    said = [] if judged.too_few else [tried(run, judged)]
    return Section(title, text=said, tables=[Table([Column("Why"), Column("Command")], rows)])


def tried(run: Run, judged: Verdict) -> str:
    """What the command has already tried."""
    if library := read_library(run):
        names = ", ".join(candidate.title for candidate in library.candidates)
        return f"Tried already, judged by cross-validation over the training patients: {names}."
    starts = sum(
        1 + len(attempt.get("preferred_to") or ())
        for seed in run.all_seeds
        for attempt in seed.status.get("attempts") or [{}]
    )
    rules = f", and {len(judged.baselines)} rules without a network" if judged.baselines else ""
    return (
        f"Tried already: {plural(len(run.all_seeds), 'run')} from {plural(starts, 'start')} that competed{rules}. "
        "More epochs or another seed alone will hardly help."
    )


def next_steps(run: Run, judged: Verdict) -> list[tuple[str, str]]:
    """Why, and the command; for runs on one's own files that detected no signal, or less than a baseline."""
    cohort = run.origin.get("cohort")
    if cohort is None or judged.first_sentence is None:
        return []
    steps = []
    best = judged.best if judged.best is not None and judged.baseline_told(judged.best) else None
    folds = _possible_folds(run)
    if best in ("mean", "composition") and run.model != BLIND:
        steps.append((
            "A rule that sees no positions does as well: take the model that sees none; distance may not count.",
            _train(cohort, run.origin, f"{run.path}-{BLIND}", "--model", BLIND, *_settings(run, options=False)),
        ))  # fmt: skip
    if best in ("pairs", "contacts"):
        steps.append((
            "How near two types of instances come says more than this run found: start it with more seeds, and report "
            "the rule.",
            _train(cohort, run.origin, f"{run.path}-seeds", *_model(run), *_settings(run), "--seeds", "5"),
        ))  # fmt: skip
    if not run.folds and not judged.told and folds:
        steps.append((
            "A few held-out bags tell little: folds score every bag once.",
            _train(
                cohort, run.origin, f"{run.path}-folds", *_model(run), *_settings(run),
                "--folds", str(folds), "--seeds", "3",
            ),
        ))  # fmt: skip
    if judged.too_few and not run.folds:
        return steps
    if best is None:
        steps.append((
            "Neither the model nor a rule finds anything: look for wrong labels and scales, and whether the cohort is "
            "large enough.",
            shlex.join(["dasmil", "doctor", *_where(cohort, DOCTOR)]),
        ))  # fmt: skip
    if best is None and not cohort.get("one_hot"):  # types of cells come from no encoder
        steps.append(("Other features may hold what these do not: see which encoders there are.", "dasmil encoders"))
    return steps


def _possible_folds(run: Run) -> int:
    """How many folds `train` accepts, at most five: no more than patients of the rarest class; 0 where it has none.

    Folds by site need as many sites, which a run does not count.
    """
    if (run.origin.get("cohort") or {}).get("site_column"):
        return 0
    owners: dict[int, set[str]] = {number: set() for number in range(run.classes if run.asked.labels else 0)}
    for split in run.splits:
        for found in run.answers(split)[:1]:
            for patient, stratum in zip(found.patients, run.asked.strata(found.values).tolist(), strict=True):
                owners.setdefault(stratum, set()).add(patient)
    fewest = min(map(len, owners.values()))
    return min(FOLDS, fewest) if fewest >= 3 else 0  # one each to test, to validate and to train on


def _model(run: Run) -> list[str]:
    """The same model, with its radius: without one a bag of 500,000 cells would take hours."""
    radius = run.config["model"].get("options", {}).get("radius")
    known = "radius" in (run.data.get("given") or {}).get("options", {})
    own = ["--set", f"radius={radius:g}"] if isinstance(radius, int | float) and not known else []
    return ["--model", run.model, *own]


def _settings(run: Run, *, options: bool = True) -> list[str]:
    """What the run was given besides its bags: settings of training, and options of its model where they are meant."""
    given = run.data.get("given") or {}
    words = ["--preset", str(given["preset"])] if options and given.get("preset") else []
    for name, value in {**given.get("training", {}), **(given.get("options", {}) if options else {})}.items():
        text = value if isinstance(value, str) else json.dumps(value)
        words += [f"--{name.replace('_', '-')}", text] if name in OWN_FLAGS else ["--set", f"{name}={text}"]
    return words


def _train(cohort: Mapping[str, Any], origin: Mapping[str, Any], out: str, *more: str) -> str:
    given = [name for name in cohort if name not in ("bags", "labels", "categories")]
    seed = ["--split-seed", str(origin["split_seed"])] if origin.get("split_seed") else []
    folds = ["--folds", str(origin["folds"])] if origin.get("folds") else []
    return shlex.join(["dasmil", "train", "--bags", *_where(cohort, given), *seed, *folds, *more, "--out", out])


def _where(cohort: Mapping[str, Any], names: Any) -> list[str]:
    """Where the bags are, and what else was given about them, as options of a command."""
    words = [str(cohort["bags"])]
    for name in ("labels", *names):
        value = cohort.get(name)
        if value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return words

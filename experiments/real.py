"""Default settings on real cohorts: simple rules, AB-MIL, das-mil and auto on the same folds of patients.

    python experiments/real.py run linear covariates auto ab-mil das-mil --data DATA --out docs/results/real
    python experiments/real.py run auto --cohorts tnbc breast --data DATA --out docs/results/real
    python experiments/real.py page --out docs/results/real --page docs/results/real.md

A cell is a cohort and a method, one file in the folder --out; cells that are there are not computed again. A cell holds
the out-of-fold predictions; the page computes every figure from them.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from real_cohorts import COHORTS, RealCohort

import dasmil
from dasmil.baselines.covariates import CovariateTable, fit_classes, fit_cox_risk
from dasmil.candidates.folds import Fold, patient_folds
from dasmil.candidates.linear import Reader
from dasmil.candidates.objective import objective_of
from dasmil.candidates.ridge import Coordinates, fit_chosen
from dasmil.files import write_json, write_text
from dasmil.stats import FollowUp, ScoredSet, class_set, difference_of_sets, mean_over_sets, survival_set
from dasmil.tasks import Task, resolve_task
from dasmil.train.auto import is_spatial
from dasmil.types import Bag

Array = NDArray[np.float64]
METHODS = ("linear", "covariates", "auto", "ab-mil", "das-mil")
FOLD_SEED = 100
BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
SIMPLE = ("composition", "mean")
SHOWN = {
    "composition": "composition", "mean": "mean features", "contacts": "neighbourhood composition",
    "ab-mil": "AB-MIL", "das-mil": "das-mil", "auto": "auto", "covariates": "covariates",
}  # fmt: skip
"""The columns of the page: by name in the cells, and their headings."""


def task_of(cohort: RealCohort, bags: list[Bag]) -> Task:
    """What is asked of these bags, with their classes or bins of time."""
    task = resolve_task("survival" if cohort.survival else None, bags)
    return task.fitted(np.array([task.values_of(bag) for bag in bags]))


def has_places(bags: list[Bag]) -> bool:
    """Whether instances of some bag lie at different places."""
    return any(bool((bag.coords != bag.coords[:1]).any()) for bag in bags)


def outer_folds(cohort: RealCohort, bags: list[Bag]) -> list[Fold]:
    """At most five folds by patient, balanced by class or event; the same for every method."""
    task = task_of(cohort, bags)
    objective = objective_of(task, np.array([task.values_of(bag) for bag in bags]))
    return patient_folds(objective, [bag.patient_id or bag.bag_id for bag in bags], seed=FOLD_SEED)


def facts(cohort: RealCohort, bags: list[Bag], folds: list[Fold]) -> dict[str, Any]:
    """What the page must know of the bags: numbered patients, targets and folds."""
    task = task_of(cohort, bags)
    patients = [bag.patient_id or bag.bag_id for bag in bags]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(patients))}
    fold = np.zeros(len(bags), dtype=np.int64)
    for number, one in enumerate(folds):
        fold[one.held] = number
    return {
        "patients": [numbers[name] for name in patients],
        "targets": [task.values_of(bag) for bag in bags],
        "fold": fold.tolist(),
        "instances": float(np.median([len(bag) for bag in bags])),
        "features": bags[0].features.shape[1],
        "places": has_places(bags),
    }


def linear_answers(cohort: RealCohort, train: list[Bag], held: list[Bag]) -> dict[str, Array]:
    """Predictions of a ridge regression on every summary of bags; its penalty is chosen inside the training bags."""
    task = task_of(cohort, train)
    objective = objective_of(task, np.array([task.values_of(bag) for bag in train]))
    patients = [bag.patient_id or bag.bag_id for bag in train]
    reader = Reader.fitted(train)
    numbers, others = reader.numbers(train), reader.numbers(held)
    found = {}
    placed = has_places(train)
    for name, values in numbers.items():
        if not placed and is_spatial(name):
            continue
        where = Coordinates.of(values)
        line = fit_chosen(where.rows, objective, patients)
        found[name] = task.answers(line.outputs((others[name] - where.centre) @ where.back, objective))
    return found


def network_answers(
    cohort: RealCohort, method: str, train: list[Bag], held: list[Bag]
) -> tuple[dict[str, Array], str | None]:
    """Predictions of a model with default settings, and the candidate that auto kept."""
    run = dasmil.fit(
        method, train, task="survival" if cohort.survival else None, seeds=[0], progress=False,
        note=lambda text: None,
    )[0]  # fmt: skip
    kept = None if run.library is None else str(run.library["selected"])
    return {method: run.predict(held)}, kept


def covariate_answers(
    cohort: RealCohort, data: Path, bags: list[Bag], rows: NDArray[np.int64], held: NDArray[np.int64]
) -> dict[str, Array]:
    """Predictions of a regression with ridge 1 on what is known of the patient beside the slide."""
    values = cohort.values(data, bags)
    known = {n: [v[i] for i in rows] for n, v in values.items()}
    known = {name: cells for name, cells in known.items() if any(cell is not None for cell in cells)}
    table = CovariateTable.fitted(known)
    x = table.numbers_of(known)
    others = table.numbers_of({name: [values[name][i] for i in held] for name in known})
    task = task_of(cohort, bags)
    targets = np.array([task.values_of(bag) for bag in bags])[rows]
    if cohort.survival:
        return {"covariates": fit_cox_risk(x, FollowUp(targets[:, 0], targets[:, 1] == 1))(others)}
    labels = targets[:, 0].astype(np.int64)
    return {"covariates": fit_classes(x, labels, len(task.targets[0].classes))(others)}  # pyright: ignore


def run_cell(cohort: RealCohort, method: str, data: Path, bags: list[Bag], folds: list[Fold]) -> dict[str, Any]:
    """Out-of-fold predictions by name, CPU seconds, and what auto kept."""
    answers: dict[str, Array] = {}
    kept: list[str] = []
    began = time.process_time()
    for fold in folds:
        train, held = [bags[i] for i in fold.rest], [bags[i] for i in fold.held]
        if method == "linear":
            found = linear_answers(cohort, train, held)
        elif method == "covariates":
            found = covariate_answers(cohort, data, bags, fold.rest, fold.held)
        else:
            found, selected = network_answers(cohort, method, train, held)
            kept += [] if selected is None else [selected]
        for name, values in found.items():
            answers.setdefault(name, np.zeros((len(bags), *values.shape[1:])))[fold.held] = values
    seconds = time.process_time() - began
    rounded = {name: [[float(f"{v:.6g}") for v in np.atleast_1d(row)] for row in v] for name, v in answers.items()}
    return {"answers": rounded, "seconds": round(seconds, 1), "selected": kept}


def run(methods: list[str], names: list[str], data: Path, out: Path) -> None:
    """Compute the cells that are missing, method by method."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        cohort = COHORTS[name]
        missing = [
            method
            for method in methods
            if not (out / f"{name}.{method}.json").exists() and not (method == "covariates" and cohort.rows is None)
        ]
        if not missing:
            continue
        bags = cohort.load(data)
        folds = outer_folds(cohort, bags)
        write_json(out / f"{name}.json", facts(cohort, bags, folds))
        for method in missing:
            cell = run_cell(cohort, method, data, bags, folds)
            write_json(out / f"{name}.{method}.json", cell)
            print(name, method, f"{cell['seconds']} CPU s", *cell["selected"], flush=True)


def scored(known: dict[str, Any], values: list[list[float]]) -> list[ScoredSet]:
    """The predictions of every fold as sets whose patients are resampled."""
    targets, table = np.array(known["targets"]), np.array(values)
    fold, patients = np.array(known["fold"]), np.array(known["patients"]).astype(str)
    sets = []
    for number in np.unique(fold):
        own = fold == number
        who = patients[own].tolist()
        if targets.shape[1] == 2:
            follow = FollowUp(targets[own, 0], targets[own, 1] == 1)
            sets.append(survival_set(follow, [table[own, 0]], who))
        else:
            said = table[own, 0] if table.shape[1] == 1 else table[own]
            sets.append(class_set(targets[own, 0].astype(np.int64), [said], [0.5], who))
    return sets


def read(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, list[list[float]]], dict[str, Any]] | None:
    """What is stored of a cohort: its facts, predictions by name, and cells by method; None where nothing is."""
    if not (folder / f"{name}.json").exists():
        return None
    known = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    cells = {
        method: json.loads(file.read_text(encoding="utf-8"))
        for method in METHODS
        if (file := folder / f"{name}.{method}.json").exists()
    }
    answers = {key: values for cell in cells.values() for key, values in cell["answers"].items()}
    return known, answers, cells


def figures(folder: Path, name: str) -> dict[str, Any] | None:
    """Every figure of a cohort: score and interval by model, and the differences that the page shows."""
    found = read(folder, name)
    if found is None:
        return None
    known, answers, cells = found
    metric = "c_index" if len(known["targets"][0]) == 2 else "auroc"
    sets = {key: scored(known, values) for key, values in answers.items()}
    scores: dict[str, tuple[float, list[float]]] = {}
    for key, folds in sets.items():
        one = mean_over_sets(folds)
        scores[key] = one["mean"][metric], one["interval"][metric]

    def gap(first: str, second: str) -> tuple[float, list[float]] | None:
        if first not in sets or second not in sets:
            return None
        one = difference_of_sets(list(zip(sets[first], sets[second], strict=True)), metric)
        return one["difference"], one["interval"]

    simple = [key for key in SIMPLE if key in scores]
    best = max(simple, key=lambda key: scores[key][0]) if simple else None
    targets = np.array(known["targets"])
    return {
        "known": known, "cells": cells, "scores": scores, "metric": metric, "best": best,
        "auto": None if best is None else gap("auto", best),
        "positions": None if best is None else gap("contacts", "composition"),
        "das-mil": gap("das-mil", "ab-mil") if known["places"] else None,
        "patients": len(set(known["patients"])),
        "events": int(targets[:, 1].sum()) if targets.shape[1] == 2 else np.bincount(targets[:, 0].astype(int)),
    }  # fmt: skip


def _interval(ends: list[float]) -> str:
    return "" if not math.isfinite(ends[0]) else f" [{ends[0]:.3f}, {ends[1]:.3f}]"


def _gap(found: tuple[float, list[float]] | None) -> str:
    if found is None:
        return "-"
    value, ends = found
    clear = math.isfinite(ends[0]) and (ends[0] > 0 or ends[1] < 0)
    text = f"{value:+.3f}" + ("" if not math.isfinite(ends[0]) else f" [{ends[0]:+.3f}, {ends[1]:+.3f}]")
    return f"**{text}**" if clear else text


def page(folder: Path) -> str:
    """The tables of all stored cells."""
    every = {name: found for name in COHORTS if (found := figures(folder, name)) is not None}
    lines: list[str] = []
    for title, names in _groups(every):
        lines += [f"### {title}", ""]
        shown = [key for key in SHOWN if any(key in every[name]["scores"] for name in names)]
        lines += ["| cohort, question | slides, patients | " + " | ".join(SHOWN[key] for key in shown) + " |"]
        lines += ["|---|---|" + "---|" * len(shown)]
        for name in names:
            one, cohort = every[name], COHORTS[name]
            cells = [
                f"{one['scores'][k][0]:.3f}{_interval(one['scores'][k][1])}" if k in one["scores"] else "-"
                for k in shown
            ]
            count = f"{len(one['known']['patients'])}, {one['patients']}"
            lines.append(f"| {cohort.title}: {cohort.question} | {count} | {' | '.join(cells)} |")
        lines.append("")
    lines += ["### Differences on the same folds and resamples", ""]
    lines += [
        "| cohort | auto minus best simple | neighbourhoods minus composition | das-mil minus AB-MIL | auto kept |"
    ]
    lines += ["|---|---|---|---|---|"]
    for name, one in every.items():
        kept = one["cells"].get("auto", {}).get("selected", [])
        counts = ", ".join(f"{k} {kept.count(k)}" for k in dict.fromkeys(kept)) or "-"
        beside = f" ({SHOWN[one['best']]})" if one["auto"] is not None else ""
        lines.append(
            f"| {COHORTS[name].title}, {COHORTS[name].question} | {_gap(one['auto'])}{beside} | "
            f"{_gap(one['positions'])} | {_gap(one['das-mil'])} | {counts} |"
        )
    lines += ["", "### Data and CPU seconds of all folds", ""]
    lines += ["| cohort | data | events or classes | instances (median) x features | " + " | ".join(METHODS) + " |"]
    lines += ["|---|---|---|---|" + "---|" * len(METHODS)]
    for name, one in every.items():
        known = one["known"]
        seconds = [f"{one['cells'][m]['seconds']:.0f}" if m in one["cells"] else "-" for m in METHODS]
        events = one["events"] if isinstance(one["events"], int) else ", ".join(map(str, one["events"]))
        lines.append(
            f"| {COHORTS[name].title}, {COHORTS[name].question} | {COHORTS[name].source} | {events} | "
            f"{known['instances']:,.0f} x {known['features']} | {' | '.join(seconds)} |"
        )
    lines += ["", "### Figures of others on the same data", ""]
    lines += [f"- {c.title}, {c.question}: {c.figure}." for name, c in COHORTS.items() if name in every and c.figure]
    return "\n".join(lines) + "\n"


def _groups(every: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """The cohorts under the headings of the page."""
    places = [name for name in every if every[name]["known"]["places"]]
    rest = [name for name in every if name not in places]
    survival = [name for name in every if COHORTS[name].survival]
    slides = [name for name in rest if name not in survival and COHORTS[name].rows is not None]
    found = [
        ("With positions: classes, AUROC", [name for name in places if name not in survival]),
        ("Survival, C-index", survival),
        ("Slides without positions, AUROC", slides),
        ("Classic sets without positions, AUROC", [n for n in rest if n not in survival and n not in slides]),
    ]
    return [(title, names) for title, names in found if names]


def write_page(file: Path, folder: Path) -> None:
    """Put the tables between the marks of a page."""
    text = file.read_text(encoding="utf-8")
    write_text(file, f"{text.split(BEGIN)[0]}{BEGIN}\n\n{page(folder)}\n{END}{text.split(END)[1]}")


def main() -> None:
    """Compute the cells that are missing, or make the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("run", "page"))
    parser.add_argument("methods", nargs="*", choices=[*METHODS, []])
    parser.add_argument("--cohorts", nargs="*", choices=list(COHORTS), default=list(COHORTS))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if given.kind == "run":
        if given.data is None:
            parser.error("--data: the folder of the cohorts")
        run(given.methods, given.cohorts, given.data, given.out)
    elif given.page is None:
        print(page(given.out))
    else:
        write_page(given.page, given.out)


if __name__ == "__main__":
    main()

"""Cells of the spatial benchmark: one model on one task, all folds and seeds, stored fold by fold with its manifest."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dasmil
from dasmil.baselines.cox import fit_cox
from dasmil.data.splits import make_folds
from dasmil.files import write_json
from dasmil.models.base import MILModel
from dasmil.models.psa_mil import PSAMIL
from dasmil.stats import FollowUp, harrell
from dasmil.stats.resample import interval
from dasmil.train import RunSpec
from dasmil.types import Bag

COMPOSITION = "composition"
"""No network: a logistic (or Cox) regression on the mean features, which of one-hot types are their shares."""

MECHANISMS: dict[str, str] = {
    COMPOSITION: "none (no network)", "das-mil": "learned sigmoid of the distance", "sa": "none",
    "disc-rel-sa": "bins", "sa-alibi": "linear bias", "sa-rope": "rotary", "sa-fourier": "absolute",
    "psa-mil": "Gaussian decay", "sm-abmil": "graph", "rrt-mil": "order",
    "ab-mil": "none", "dsmil": "none", "sa-axial": "absolute", "gcn": "graph", "patch-gcn": "graph", "camil": "graph",
    "clam-sb": "none", "transmil": "absolute",
}  # fmt: skip
"""In the order in which they are trained: first one of each kind."""
MODELS = tuple(MECHANISMS)
RATES = (2e-4, 1e-3, 5e-3)
"""Among these each fold of each model chooses by the loss on its validation bags."""
PENALTIES = (0.01, 0.1, 1.0)
"""As many for the regression on composition: its C, and 1 / C is the ridge of a Cox regression."""
SIZES: dict[str, dict[str, Any]] = {
    "transmil": {"features": 64},
    "rrt-mil": {"features": 64},
    "patch-gcn": {"features": 32},
    "camil": {"head_features": 8, "landmarks": 32, "local_features": 64, "hidden": 64},
}
"""Smaller than published, where training takes several times as long."""
WEIGHT_DECAY = 1e-2
DRAWS = 500


@dataclass(frozen=True)
class Task:
    """Bags with labels, or with the targets time and event; keep_scores: whether predictions may be stored."""

    name: str
    bags: Sequence[Bag]
    folds: int = 5
    keep_scores: bool = True
    epochs: int = 20
    survival: bool = False


def run_cell(task: Task, model: str, out: Path, *, seeds: int) -> dict[str, Any]:
    """Train what is missing of a cell and return it; one that was trained with other settings begins anew."""
    path = out / task.name / f"{model}.json"
    labels = [int(bag.targets["event"] or 0) if task.survival else int(bag.label or 0) for bag in task.bags]
    patients = [str(bag.patient_id or bag.bag_id) for bag in task.bags]
    tried: dict[str, Any] = {"C": list(PENALTIES)}
    if model != COMPOSITION:
        tried = {"epochs": task.epochs, "lr": list(RATES)} | ({"sizes": SIZES[model]} if model in SIZES else {})
    new: dict[str, Any] = {
        "task": task.name, "model": model, "mechanism": MECHANISMS[model], "bags": len(labels),
        "patients": len(set(patients)), "folds_planned": task.folds, "seeds": seeds, "settings": tried, "folds": [],
    }  # fmt: skip
    cell = json.loads(path.read_text(encoding="utf-8")) if path.exists() else new
    if any(cell[name] != value for name, value in new.items() if name != "folds"):
        cell = new
    for number, fold in enumerate(make_folds(patients, labels, task.folds, val_share=None)):
        if number < len(cell["folds"]):
            continue
        begun = time.process_time()
        parts = {name: [task.bags[i] for i in getattr(fold, name)] for name in ("train", "val", "test")}
        found = composition(task, parts) if model == COMPOSITION else trained(task, model, parts, seeds)
        found |= {"cpu_seconds": round(time.process_time() - begun, 1), "manifest": manifest()}
        who = [patients[i] for i in fold.test]
        cell["folds"].append(found | _kept(task, parts["test"], who, found.pop("scores")))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, cell)
    return cell


def composition(task: Task, parts: dict[str, list[Bag]]) -> dict[str, Any]:
    """A regression on mean features, its penalty chosen on the validation bags."""

    def means(bags: Sequence[Bag]) -> NDArray[np.float64]:
        return np.stack([bag.features.mean(0).double().numpy() for bag in bags])

    def said(penalty: float, bags: Sequence[Bag], others: Sequence[Bag]) -> NDArray[np.float64]:
        if task.survival:
            size = means(bags).std(0).clip(1e-9)
            return fit_cox(means(bags) / size, follow_up(bags), ridge=1 / penalty).risk(means(others) / size)
        rule = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=2000))
        return rule.fit(means(bags), [bag.label for bag in bags]).predict_proba(means(others))[:, 1]

    trials = [
        {"C": penalty, "val_loss": _loss(task, said(penalty, parts["train"], parts["val"]), parts["val"])}
        for penalty in PENALTIES
    ]
    chosen = min(trials, key=lambda trial: trial["val_loss"])
    scores = [said(chosen["C"], parts["train"] + parts["val"], parts["test"])]
    return {"chosen": chosen["C"], "trials": trials, "scores": scores, "lengths_um": [], "fitted": [True]}


def trained(task: Task, model: str, parts: dict[str, list[Bag]], seeds: int) -> dict[str, Any]:
    """One run for each learning rate; then, with the best on the validation bags, all seeds on all other bags."""
    how: dict[str, Any] = {"progress": False, "epochs": task.epochs, "model_options": SIZES.get(model)}
    if task.survival:
        how["task"] = "survival"
    specs = [RunSpec(0, rate, WEIGHT_DECAY) for rate in RATES]
    tries = dasmil.fit(model, parts["train"], runs=specs, **how)
    trials = [
        {"lr": rate, "val_loss": _loss(task, run.predict(parts["val"]), parts["val"]), "fitted": bool(run.fitted)}
        for rate, run in zip(RATES, tries, strict=True)
    ]
    chosen = min(trials, key=lambda trial: trial["val_loss"])["lr"]
    everything = parts["train"] + parts["val"]
    runs = dasmil.fit(model, everything, seeds=seeds, lr=chosen, weight_decay=WEIGHT_DECAY, **how)
    return {
        "chosen": chosen, "trials": trials, "scores": [run.predict(parts["test"]) for run in runs],
        "lengths_um": [_lengths(run.model) for run in runs], "fitted": [bool(run.fitted) for run in runs],
    }  # fmt: skip


def _lengths(model: MILModel) -> list[float]:
    """Where each head's learned function of the distance is halfway; none if the model learns no length."""
    if isinstance(model, PSAMIL):
        return [round(row["halfway"], 2) for row in model.learned_radii()]
    return [round(row["midpoint"], 2) for row in model.learned_distances()]


def follow_up(bags: Sequence[Bag]) -> FollowUp:
    """Times and events of bags that have them as targets."""
    times, events = (np.array([bag.targets[name] for bag in bags], dtype=np.float64) for name in ("time", "event"))
    return FollowUp(times, events == 1)


def _loss(task: Task, said: NDArray[np.float64], bags: Sequence[Bag]) -> float:
    """Cross-entropy, or 1 - C-index where a risk is said; a run that broke off loses."""
    if not np.isfinite(said).all():
        return float("inf")
    if task.survival:
        return round(1 - float(harrell(follow_up(bags), said)[0]), 5)
    return round(float(log_loss([bag.label for bag in bags], said, labels=[0, 1])), 5)


def _kept(task: Task, bags: Sequence[Bag], who: list[str], scores: Sequence[Any]) -> dict[str, Any]:
    """The predictions; where they may not be stored, counts of pairs that they rank right, by patients."""
    rounded = [np.round(np.asarray(row, dtype=np.float64), 5) for row in scores]
    y = np.array([bag.label for bag in bags])
    if task.keep_scores:
        return {"labels": y.tolist(), "patients": who, "scores": [row.tolist() for row in rounded]}
    names = sorted(set(who))
    if task.survival:
        follow = follow_up(bags)
        counts = [_counts(_earlier(follow), who, row, names) for row in rounded]
        kept: dict[str, Any] = {"bags": len(who), "events": int(follow.events.sum())}
    else:
        counts = [_counts(y[:, None] > y[None], who, row, names) for row in rounded]
        kept = {"bags": len(who), "positive": int(y.sum())}
    return kept | {"groups": names, "pairs": counts[0][1].tolist(),
                   "ranked_right": [right.tolist() for right, _ in counts]}  # fmt: skip


def _earlier(follow: FollowUp) -> NDArray[np.bool_]:
    """Of which pairs the first (row) has the event before the second (column): those that Harrell's C-index counts."""
    times, events = follow.times, follow.events
    before = times[:, None] < times[None]
    return events[:, None] & (before | ((times[:, None] == times[None]) & ~events[None]))


def _counts(
    above: NDArray[np.bool_], who: Sequence[str], scores: NDArray[np.float64], names: Sequence[str]
) -> tuple[Any, Any]:
    """Of bags of one patient (row) that belong above those of another: pairs ranked right, ties half; and all pairs."""
    member = (np.array(who)[None] == np.array(names)[:, None]).astype(np.int64)
    right = (scores[:, None] > scores[None]) + 0.5 * (scores[:, None] == scores[None])
    return member @ (right * above) @ member.T, member @ above @ member.T


def _ranked(fold: dict[str, Any]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Patients of a fold, pairs ranked right of each seed [seeds, p, p], pairs [p, p]."""
    if "scores" not in fold:
        return fold["groups"], np.array(fold["ranked_right"]), np.array(fold["pairs"])
    names, y = sorted(set(fold["patients"])), np.array(fold["labels"])
    counts = [_counts(y[:, None] > y[None], fold["patients"], np.array(row), names) for row in fold["scores"]]
    return names, np.stack([right for right, _ in counts]), counts[0][1]


def drawn(cell: dict[str, Any]) -> np.ndarray:
    """A cell's AUROC or C-index, mean over seeds and folds, under resamples of all patients [DRAWS], alike for all."""
    folds = [_ranked(fold) for fold in cell["folds"]]
    everyone = sorted({name for names, _, _ in folds for name in names})
    times = np.random.default_rng(0).multinomial(len(everyone), [1 / len(everyone)] * len(everyone), DRAWS)
    parts = []
    for names, right, pairs in folds:
        w = times[:, [everyone.index(name) for name in names]].astype(float)
        total = np.einsum("dp,pq,dq->d", w, pairs, w)
        found = np.einsum("dp,pq,dq->d", w, right.mean(0), w)
        parts.append(np.divide(found, total, out=np.full(DRAWS, np.nan), where=total > 0))
    table = np.stack(parts)
    there = np.isfinite(table)
    return np.where(there, table, 0).sum(0) / np.maximum(there.sum(0), 1)


def finished(cell: dict[str, Any]) -> bool:
    """Whether every fold is there."""
    return len(cell["folds"]) == cell["folds_planned"]


def scores(cell: dict[str, Any]) -> dict[str, Any]:
    """AUROC (mean over folds and seeds), its interval, the learned lengths, runs that did not fit, CPU time a fold."""
    folds = cell["folds"]
    ranked = [_ranked(fold) for fold in folds]
    values = [[float(one.sum() / pairs.sum()) for one in right] for _, right, pairs in ranked]
    heads = None if cell["model"] == "psa-mil" else 1  # further heads of das-mil cancel what all instances share
    lengths = [length for fold in folds for run in fold["lengths_um"] for length in run[:heads]]
    runs = sum(len(fold["fitted"]) for fold in folds)
    return {
        "auroc": float(np.mean([np.mean(v) for v in values])), "interval": interval(drawn(cell)),
        "lowest": min(min(v) for v in values), "lengths_um": lengths, "runs": runs,
        "not_fitted": sum(not fit for fold in folds for fit in fold["fitted"]),
        "cpu_seconds": sum(fold["cpu_seconds"] for fold in folds) / len(folds),
    }  # fmt: skip


def summary(cell: dict[str, Any]) -> str:
    """One line about a cell."""
    found = scores(cell)
    low, high = found["interval"]
    reach = f", {min(found['lengths_um']):.1f} to {max(found['lengths_um']):.1f} um" if found["lengths_um"] else ""
    return (
        f"{cell['task']}  {cell['model']:12} {found['auroc']:.3f} [{low:.3f}, {high:.3f}]  {len(cell['folds'])} of "
        f"{cell['folds_planned']} folds{reach}, {found['not_fitted']} of {found['runs']} not fitted, "
        f"{found['cpu_seconds']:.0f} CPU seconds a fold"
    )


def manifest() -> dict[str, str]:
    """Which code made a fold: commit of the package's source, and whether files differed from it."""
    here = Path(__file__).resolve().parent
    ask = lambda *words: subprocess.run(  # noqa: E731
        ["git", *words], cwd=here, capture_output=True, text=True, check=False
    ).stdout.strip()
    changed = ask("status", "--porcelain", "--", "../src")
    return {
        "commit": ask("log", "-1", "--format=%h", "--", "../src") or "unknown",
        "changed": "yes" if changed else "no",
        "dasmil": version("dasmil"),
        "torch": version("torch"),
    }

"""The figures of a run, made from its run directory, with their captions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dasmil.report import figures
from dasmil.report.figures import Line, Panel, Series
from dasmil.report.page import Picture, picture
from dasmil.report.phi import Phi, Truth, phi_figure
from dasmil.report.style import ACCENT, CLASS_COLOURS
from dasmil.report.words import bags_text, decimal, display_name, interval_text, seed_name
from dasmil.runs import Predictions, Run, verdict
from dasmil.stats import Roc, confusion_counts, roc_curve
from dasmil.vocabulary import UNIT_SYMBOL


def roc_picture(run: Run, split: str) -> Picture | None:
    """The ROC of a split with its band; one curve per class, against the rest, for more than two."""
    parts = run.per_seed(split)
    if not parts:
        return None
    curves = roc_curves(run, split) if run.classes == 2 else []
    if run.classes > 2:
        for c, name in enumerate(run.class_names):
            if curve := _roc(run, split, c):
                curves.append((name, curve, CLASS_COLOURS[c % len(CLASS_COLOURS)]))
    if not curves:
        return None
    patients = _patients(parts[0])
    caption = f"{split}, {bags_text(len(patients), len(set(patients)))}."
    if run.classes > 2:
        caption += " Each class against the rest."
    if run.folds:
        caption += " Mean of the folds' curves, each of its own bags."
    return picture(figures.roc(curves), f"ROC curve, {split}", caption)


def roc_curves(run: Run, split: str, colour: str = ACCENT, name: str = "AUROC") -> list[tuple[str, Roc, str]]:
    """The labelled ROC curve of a run with two classes, as figures.roc takes it; empty when one class is missing."""
    curve = _roc(run, split, 1)
    if curve is None:
        return []
    scored = run.summary["splits"][split]
    interval = interval_text(scored.get("interval", {}).get("auroc"))
    text = f"{name} {decimal(scored['mean'].get('auroc'))}" + (f" ({interval})" if interval else "")
    return [(text, curve, colour)]


def _roc(run: Run, split: str, positive: int) -> Roc | None:
    """One class against the rest; of a cross-validation the mean of its folds' curves, as its AUROC is their mean."""
    found = []
    for part in run.folds or [run]:
        if seeds := part.per_seed(split):
            known = seeds[0].labels >= 0
            scores = [p.probabilities if p.probabilities.ndim == 1 else p.probabilities[:, positive] for p in seeds]
            found.append((seeds[0].labels[known] == positive, [score[known] for score in scores], _patients(seeds[0])))
    return roc_curve(*found)


def _patients(part: Predictions) -> list[str]:
    """The patients of the bags with a known label."""
    return [patient for patient, label in zip(part.patients, part.labels, strict=True) if label >= 0]


def confusion_picture(run: Run, split: str, title: str = "Confusion matrix") -> Picture | None:
    """Counts at the chosen threshold, by the mean probability of the seeds."""
    found = run.ensemble(split)
    if found is None or not (found.labels >= 0).any():
        return None
    known = found.labels >= 0
    counts = confusion_counts(found.labels[known], found.predictions[known], run.classes)
    how = f"Threshold {run.threshold:.2f}" if run.classes == 2 else "Most probable class"
    if run.folds and run.classes == 2:
        how = "At the threshold of each fold"
    who = "by the mean probability of the seeds" if len(run.per_seed(split)) > 1 else ""
    caption = ", ".join(filter(None, [how, who, split])) + "."
    return picture(figures.confusion(counts, run.class_names, title), f"Confusion matrix, {split}", caption)


def calibration_picture(run: Run, split: str) -> Picture | None:
    bins = run.summary["splits"][split].get("calibration")
    if not bins:
        return None
    caption = "Mean probability of the seeds; the diagonal is perfect."
    if run.classes > 2:
        caption = "Confidence of the predicted class against how often it was right."
    return picture(figures.calibration(bins), f"Calibration, {split}", caption)


def phi_picture(run: Run, truth: Truth | None = None, doubt: str = "") -> Picture | None:
    """phi(delta) of every seed that was trained, layer and head; None for models without learned distances.

    doubt: the verdict on a model that is no better than chance; it stands in place of where phi is halfway.
    """
    rows = [
        (part.options, seed, row)  # each fold has the distance scale of its own training bags
        for part in run.folds or [run]
        for seed in part.seeds.values()
        for row in seed.distances
        if seed.trained and None not in (row[name] for name in ("theta", "beta", "midpoint", "width"))
    ]
    if not rows:
        return None
    unit = str(rows[0][2]["unit"])
    heads = len({(row["layer"], row["head"]) for _, _, row in rows})
    functions = [
        Phi(row["theta"], row["beta"], float(options.get("distance_scale", 1.0)), unit,
            str(options.get("phi", "sigmoid")), row["head"], stuck=seed.stuck)
        for options, seed, row in rows
    ]  # fmt: skip
    scale = max(function.scale for function in functions)
    reach = max(row["midpoint"] + 0.8 * min(row["width"], 4 * abs(row["midpoint"])) for _, _, row in rows)
    reach = max(1.1 * reach, 2.2 * truth.distance if truth else 0.0)
    if reach < 0.01 * scale:  # a midpoint at or below zero says nothing about where the distances lie
        reach = scale
    middles = [row["midpoint"] for _, seed, row in rows if not seed.stuck] or [row["midpoint"] for *_, row in rows]
    symbol = UNIT_SYMBOL.get(unit, unit)
    text = (
        f"Halfway at {min(middles):.0f}–{max(middles):.0f} {symbol}"
        if len(middles) > 1
        else f"Halfway at {middles[0]:.0f} {symbol}"
    )
    per = f"seed{' and fold' if run.folds else ''}{' and head' if heads > 1 else ''}"
    caption = f"What the model learned about distance, one line per {per}. {text}."
    if doubt:
        caption = f"{doubt} These lines, one per {per}, are where training left them and show no distance that counts."
    if truth:
        side = "farther" if truth.farther else "nearer"
        does = "make a bag positive" if run.task is None else "raise the risk"
        caption += f" Shaded: pairs {side} than {truth.distance:g} {symbol} {does}."
    return picture(phi_figure(functions, reach, truth, doubtful=bool(doubt)), "Learned distance function phi", caption)


def distance_pictures(run: Run, truth: Truth | None = None) -> list[Picture]:
    """phi(delta) as it was learned, and how its midpoint moved while training; empty for models without.

    Of a model that is no better than chance they come with that verdict.
    """
    judged = verdict(run)
    phi = phi_picture(run, truth, "" if judged.told else judged.text)
    series = learning_series([(run, ACCENT)], "midpoint_0")
    if phi is None or not series:
        return [phi] if phi else []
    learned = next(seed.distances for seed in run.all_seeds if seed.distances)  # a run that stayed a rule has none
    unit = UNIT_SYMBOL.get(str(learned[0]["unit"]), "")
    label = f"true {truth.distance:g} {unit}" if truth else ""
    panel = Panel(
        "Learned distance θ" if judged.told else "θ of a model no better than chance",
        f"θ ({unit})",
        series,
        truth=truth.distance if truth else None,
        truth_label=label,
    )
    heads = ", first head" if len(learned) > 1 else ""
    caption = f"Where φ is halfway, epoch by epoch{heads}."
    if not judged.told:
        caption += " The model is no better than chance."
    return [phi, picture(figures.learning_curve(panel, 410, 320), "Learned distance by epoch", caption)]


def learning_pictures(runs: Sequence[tuple[Run, str]]) -> list[Picture]:
    """Learning curves of one run, or of several in their colours; a picture each, which narrow pages stack."""
    panels = [
        ("train_loss", "Training loss", "loss", 0.0, None),
        ("val_loss", "Validation loss", "loss", 0.0, None),
        ("val_auroc", "Validation AUROC", "AUROC", None, 1.005),
    ]
    caption = "One line per seed." if max(len(run.all_seeds) for run, _ in runs) > 1 else ""
    found = []
    for column, title, ylabel, floor, ceiling in panels:
        if series := learning_series(runs, column):
            figure = figures.learning_curve(Panel(title, ylabel, series, floor, ceiling))
            found.append(picture(figure, f"Learning curve: {title}", "" if found else caption))
    return found


def learning_series(runs: Sequence[tuple[Run, str]], column: str) -> list[Series]:
    """A column of the training curves of runs, one line a seed, in the colour of its run."""
    found = []
    for run, colour in runs:
        lines = [
            Line(seed.history["epoch"], seed.history[column], seed.stuck, seed_name(seed, run))
            for seed in run.all_seeds
            if column in seed.history and np.isfinite(seed.history[column]).any()
        ]
        if lines:
            found.append(Series(display_name(run.model), lines, colour))
    return found

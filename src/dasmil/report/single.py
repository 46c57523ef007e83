"""The report of one run, top to bottom."""

from __future__ import annotations

from dasmil.attribution.distance import told_distances
from dasmil.models import MODELS
from dasmil.report.advice import advice_section
from dasmil.report.baselines import baselines_section
from dasmil.report.calibration import calibration_section
from dasmil.report.classes import classes_section
from dasmil.report.covariates import covariates_section
from dasmil.report.decisions import decisions_section
from dasmil.report.examples import example_pictures, true_distance
from dasmil.report.library import library_section
from dasmil.report.localisation import localisation_section
from dasmil.report.maps import maps_section
from dasmil.report.overfit import overfit_notice
from dasmil.report.page import Page, Section
from dasmil.report.pictures import (
    confusion_picture,
    distance_pictures,
    learning_pictures,
    roc_picture,
)
from dasmil.report.sections import (
    bags_section,
    configuration_section,
    data_section,
    folds_section,
    headline,
    scores_table,
)
from dasmil.report.style import ACCENT
from dasmil.report.subgroups import subgroups_section
from dasmil.report.words import (
    chance_notice,
    display_name,
    plural,
    positive_bags,
    scored_bags,
    seeds_text,
    stuck_notice,
)
from dasmil.runs import Run, Seed, verdict


def run_page(run: Run) -> Page:
    """What was run, the result, the picture that explains it, curves, bags, data, configuration."""
    split = run.splits[0]
    truth = true_distance(run)
    explaining = [*example_pictures(run, split), *distance_pictures(run, truth)]
    scoring = [p for p in (roc_picture(run, split), confusion_picture(run, split)) if p]
    told, judged, folds = told_by(run), verdict(run), folds_section(run, split)
    separation = Section("How well it separates the bags", pictures=scoring)
    explained = bool(explaining or told)
    curves = [] if run.out_of_fold else learning_pictures([(run, ACCENT)])
    sections = [
        advice_section(run, judged),
        library_section(run),
        Section("What the model uses", text=told, pictures=explaining) if explained else separation,
        classes_section(run, split),
        baselines_section(run, judged),
        covariates_section(run),
        Section("Scores", tables=[scores_table(run)]),
        *([separation] if explained else []),
        calibration_section(run, split),
        decisions_section(run, split),
        subgroups_section(run),
        maps_section(run),
        localisation_section(run),
        Section("Learning curves", pictures=curves),
        *([folds] if folds else []),
        bags_section(run),
        data_section(run),
        configuration_section(run),
    ]
    return Page(
        title=f"{display_name(run.model)} on {run.dataset}",
        kicker=f"dasmil report, {run.path.resolve().name}",
        lead=judged.first_sentence or lead_sentence(run),
        headlines=[headline(run, split, "auroc"), headline(run, split, "balanced_accuracy")],
        remarks=[
            *([lead_sentence(run)] if judged.first_sentence else []),
            result_remark(run, split),
            *([judged.against_baselines] if judged.against_baselines and not judged.outdone else []),
        ],
        notices=[
            text[0].upper() + text[1:]
            for text in (
                judged.text if judged.outdone and not judged.told else None,
                stuck_notice(run),
                chance_notice(run),
                overfit_notice(run),
                no_test_notice(run, split),
            )
            if text
        ],
        sections=[
            section
            for section in sections
            if section.text or section.pictures or section.tables or section.bags or section.folded
        ],
    )


def told_by(run: Run) -> list[str]:
    """Bias and radius of all seeds and folds as sentences, and how many of these are rules without a distance."""
    rows = [row for part in run.folds or [run] for seed in part.seeds.values() for row in seed.biases]
    options = (run.folds or [run])[0].options
    told = told_distances(rows, options, str(rows[0]["unit"] if rows else options.get("unit", "um")))
    lengths = run.model in MODELS and MODELS[run.model].learns_lengths
    simple = [seed for seed in run.all_seeds if lengths and not (seed.trained and seed.distances)]
    unproven = len(simple) - sum(map(_confirmed, simple)) if run.task is not None else 0
    models = plural(len(run.all_seeds), "model")
    if len(simple) > unproven:
        told.append(
            f"{len(simple) - unproven} of {models} follow the simple rule that training bags confirm, of mean features "
            "or of the share of one type of instances: distance plays no part there."
        )
    if unproven:
        told.append(
            f"{unproven} of {models} are a regression on mean features for want of anything better, as weak as folds "
            "of training patients find it; none of them confirmed a rule, and distance plays no part."
        )
    return told


def _confirmed(seed: Seed) -> bool:
    """Whether training bags that did not choose what it says confirm it."""
    return seed.status.get("held_out_evidence") is not False


def lead_sentence(run: Run) -> str:
    """What was run, in one sentence."""
    counts = [part.data.get("splits", {}).get("train", {}).get("n") for part in run.folds or [run]]
    known = sorted({count for count in counts if count})
    bags = "training bags" if not known else plural(known[-1], "training bag")
    if len(known) > 1:
        bags = f"{known[0]} to {bags}"
    if run.folds:
        bags += " a fold"
    protocol = run.config["data"].get("protocol")
    on = run.dataset + (f" ({protocol} protocol)" if protocol else "")
    return f"{display_name(run.model)} on {on}: {seeds_text(run)}, {epochs_text(run)} over {bags}."


def epochs_text(run: Run) -> str:
    """ "50 epochs", or "8 to 12 of at most 50 epochs" where runs ended early."""
    most = run.config["training"].get("epochs")
    done = [int(seed.history["epoch"][-1]) for seed in run.all_seeds]
    if run.out_of_fold:
        return "judged by cross-validation"
    if max(done) == 0:
        known = run.task is None or any(map(_confirmed, run.all_seeds))
        rule = "a simple rule, as training bags confirm it" if known else "a regression on mean features"
        return f"no epoch of training ({rule})"
    if min(done) == most:
        return f"{most} epochs"
    return f"{min(done)}{f' to {max(done)}' if max(done) > min(done) else ''} of at most {most} epochs"


def result_remark(run: Run, split: str) -> str:
    """Which bags the large figures stand on."""
    scored = run.summary["splits"][split]
    positives = positive_bags(scored) if run.classes == 2 and "positives" in scored else ""
    classes = "" if run.classes == 2 else f", {run.classes} classes (means over the classes)"
    return f"Measured on {split}: {scored_bags(scored)}{positives}{classes}; {seeds_text(run)}."


def no_test_notice(run: Run, split: str) -> str | None:
    """A warning when the result is not on bags that training left alone."""
    if split == "val" and run.out_of_fold:
        return (
            "These are out-of-fold predictions of the training patients. There is no separate test set, and the choice "
            "among candidates makes the figure slightly too good."
        )
    if split in ("val", "train"):
        kind = "validation" if split == "val" else "training"
        return f"These are {kind} bags, not a test set: the figure is likely too good."
    return None

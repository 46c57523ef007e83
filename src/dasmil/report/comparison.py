"""A page that sets several runs on the same bags side by side; the first one is the one that is explained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from dasmil.errors import InputError
from dasmil.report import figures
from dasmil.report.baselines import baselines_section
from dasmil.report.examples import example_pictures, true_distance
from dasmil.report.figures import Score
from dasmil.report.page import Cell, Column, FoldedText, Headline, Page, Picture, Section, Table, picture, write_page
from dasmil.report.phi import Truth
from dasmil.report.pictures import confusion_picture, distance_pictures, learning_pictures, roc_curves
from dasmil.report.sections import bags_section, data_section, headline
from dasmil.report.style import ACCENT, COLOURS, GREY, ORANGE
from dasmil.report.words import (
    chance_notice,
    decimal,
    display_name,
    interval_text,
    positive_bags,
    resampled_text,
    scored_bags,
    seeds_text,
    stuck_notice,
)
from dasmil.runs import REPORT, Run, verdict
from dasmil.vocabulary import METRICS

RUN_COLOURS = (ACCENT, GREY, ORANGE)
SHOWN = ("balanced_accuracy", "auroc")

PaperValues = Mapping[str, Mapping[str, tuple[float, float]]]
"""Model -> metric -> (mean, standard deviation) as printed in the paper."""


def write_comparison(
    out: str | Path,
    run_dirs: Sequence[str | Path],
    *,
    lead: str,
    remarks: Sequence[str] = (),
    paper: PaperValues | None = None,
    pictures: Sequence[Picture] = (),
) -> Path:
    """Write out/report.html about runs with two classes on the same bags.

    paper: printed figures for reference; pictures: what explains the first run, where the report has none of its own.
    """
    runs = [Run.read(folder) for folder in run_dirs]
    split = runs[0].splits[0]
    for run in runs:
        if (
            run.classes != 2
            or split not in run.splits
            or run.data.get("fingerprint") != runs[0].data.get("fingerprint")
        ):
            raise InputError(
                f"{run.path} was not trained and scored on the bags of {runs[0].path}: compare like with like"
            )
    folder = Path(out)
    return write_page(comparison_page(runs, split, lead, remarks, paper or {}, pictures), folder / REPORT)


def comparison_page(
    runs: Sequence[Run],
    split: str,
    lead: str,
    remarks: Sequence[str],
    paper: PaperValues,
    pictures: Sequence[Picture] = (),
) -> Page:
    """Result, the picture that explains it, scores, curves, ROC, confusion, bags, data, configurations."""
    first, truth = runs[0], true_distance(runs[0])
    coloured = list(zip(runs, RUN_COLOURS))
    explaining = [*pictures, *example_pictures(first, split), *distance_pictures(first, truth)]
    curves = [curve for run, colour in coloured for curve in roc_curves(run, split, colour, display_name(run.model))]
    scored = first.summary["splits"][split]
    separation: list[Picture] = []
    if curves:
        caption = f"AUROC with its 95 % interval; {split}, {scored_bags(scored)}."
        separation.append(picture(figures.roc(curves), "ROC curves", caption))
    separation += [p for run in runs if (p := confusion_picture(run, split, f"{display_name(run.model)}: confusion"))]
    judged = verdict(first)
    measured = f"Measured on {split}: {scored_bags(scored)}{positive_bags(scored)}; {seeds_text(first)} each."
    return Page(
        title=lead,
        kicker="dasmil report",
        lead=lead,
        headlines=[_headline(run, split, colour) for run, colour in coloured],
        remarks=[*remarks, measured, *filter(None, [judged.against_baselines])],
        notices=[*([] if judged.told else [judged.text]), *(
            f"{display_name(run.model)}: {text}"
            for run in runs for text in (stuck_notice(run), chance_notice(run)) if text
        )],
        sections=[
            Section(f"What {display_name(first.model)} uses", text=_explanation(truth), pictures=explaining),
            Section("Scores", tables=[_scores(coloured, split, paper)], pictures=_dots(coloured, split, paper)),
            *([baselines_section(first, judged)] if judged.baselines else []),
            Section("Learning curves", pictures=learning_pictures(coloured)),
            Section("How well they separate the bags", pictures=separation),
            bags_section(first, f"Predictions of {display_name(first.model)}."),
            data_section(first),
            Section("Configuration", folded=[
                *(FoldedText(f"{display_name(r.model)} (config.json)", json.dumps(r.config, indent=2)) for r in runs),
                FoldedText("Versions", json.dumps(first.versions, indent=2)),
            ]),
        ],
    )  # fmt: skip


def _headline(run: Run, split: str, colour: str) -> Headline:
    found = headline(run, split, SHOWN[0])
    role = next(role for role, (light, _) in COLOURS.items() if light == colour)
    return Headline(f"{display_name(run.model)}, {found.name.lower()}", found.value, found.note, role)


def _explanation(truth: Truth | None) -> list[str]:
    if truth is None:
        return []
    side = "more" if truth.farther else "less"
    return [
        f"Two digits make a bag positive when they lie {side} than {truth.distance:g} px apart. The model was told "
        "neither the digits nor the distance, only which bags are positive."
    ]


def _scores(coloured: Sequence[tuple[Run, str]], split: str, paper: PaperValues) -> Table:
    columns = [Column("Model"), *(Column(METRICS[m].title, True) for m in SHOWN)]
    if paper:
        columns += [Column(f"{METRICS[m].title}, paper", True) for m in SHOWN]
    rows: list[list[str | Cell]] = []
    for run, _ in coloured:
        row: list[str | Cell] = [display_name(run.model)]
        for metric in SHOWN:
            scored = run.summary["splits"][split]
            text = decimal(scored["mean"].get(metric))
            if len(run.all_seeds) > 1:
                text += f" ± {decimal(scored['std'].get(metric))}"
            row.append(
                Cell(text, interval_text(scored["interval"].get(metric)), _stands_out(run, coloured, split, metric))
            )
        if paper:
            known = paper.get(run.model, {})
            row += [f"{known[m][0]:.3f} ± {known[m][1]:.3f}" if m in known else "–" for m in SHOWN]
        rows.append(row)
    drawn = resampled_text({split: coloured[0][0].summary["splits"][split]})
    note = (
        f"{'Mean ± standard deviation over seeds' if len(coloured[0][0].all_seeds) > 1 else 'One seed'}, below it the "
        f"95 % bootstrap interval over the {drawn}; bold where the interval lies above the others."
    )
    if paper:
        note += (
            " The paper's figures are for reference: 5 seeds, 50 epochs, and 100 other test bags, half of which repeat "
            "a training layout."
        )
    return Table(columns, rows, note=note)


def _stands_out(run: Run, coloured: Sequence[tuple[Run, str]], split: str, metric: str) -> bool:
    """Whether the interval of a run lies above those of all others."""
    low = run.summary["splits"][split]["interval"][metric][0]
    others = [other.summary["splits"][split]["interval"][metric][1] for other, _ in coloured if other is not run]
    return low is not None and bool(others) and all(high is not None and low > high for high in others)


def _dots(coloured: Sequence[tuple[Run, str]], split: str, paper: PaperValues) -> list[Picture]:
    pictures = []
    for metric in SHOWN:
        rows = []
        for run, colour in coloured:
            scored = run.summary["splits"][split]
            interval = scored["interval"].get(metric)
            seeds = [row[metric] for row in scored.get("per_seed", []) if row.get(metric) is not None]
            known = tuple(interval) if interval and None not in interval else None
            reference = paper.get(run.model, {}).get(metric)
            rows.append(Score(display_name(run.model), scored["mean"][metric], known, seeds,
                              reference[0] if reference else None, colour))  # fmt: skip
        name = METRICS[metric].title
        pictures.append(picture(figures.scores(rows, name), name, "Dot: mean; bar: 95 % interval; rings: seeds."))
    return pictures

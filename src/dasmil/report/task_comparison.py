"""A page that sets several survival runs on the same bags side by side; the first one is the one that is explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dasmil.errors import InputError
from dasmil.report import figures
from dasmil.report.figures import Score
from dasmil.report.page import Cell, Column, Headline, Page, Picture, Section, Table, picture, write_page
from dasmil.report.phi import Truth
from dasmil.report.pictures import distance_pictures
from dasmil.report.sections import configuration_section, data_section
from dasmil.report.style import ACCENT, GREY
from dasmil.report.task_figures import task_section
from dasmil.report.task_page import answers_section, learning, measured
from dasmil.report.words import decimal, interval_text, resampled_text, stuck_notice
from dasmil.runs import REPORT, Run
from dasmil.vocabulary import task_metric

METRIC = "c_index"


def write_survival_comparison(
    out: str | Path,
    runs: Mapping[str, str | Path],
    *,
    lead: str,
    ceiling: float,
    truth: Truth,
    remarks: Sequence[str] = (),
    pictures: Sequence[Picture] = (),
) -> Path:
    """Write out/report.html about survival runs (by their name for readers) on the same bags.

    ceiling: C-index of the true hazard on the bags that are scored; truth: the distance that decides; pictures: what
    explains the first run.
    """
    read = {name: Run.read(folder) for name, folder in runs.items()}
    first = next(iter(read.values()))
    split = first.splits[0]
    for run in read.values():
        alike = run.asked.kind == "survival" and split in run.splits
        if not alike or run.data.get("fingerprint") != first.data.get("fingerprint"):
            raise InputError(f"{run.path} is no survival run on the bags of {first.path}: compare like with like")
    known = (
        f"{measured(first, split)} The true hazard itself has a C-index of {ceiling:.3f} on these slides: nobody "
        "can do better but by luck."
    )
    page = Page(
        title=lead,
        kicker="dasmil report",
        lead=lead,
        headlines=[_headline(name, run, split, number) for number, (name, run) in enumerate(read.items())],
        remarks=[*remarks, known],
        notices=[f"{name}: {text}" for name, run in read.items() if (text := stuck_notice(run))],
        sections=[
            Section("What the first model uses", pictures=[*pictures, *distance_pictures(first, truth)]),
            Section("Scores", tables=[_table(read, split, ceiling)], pictures=[_dots(read, split, ceiling)]),
            task_section(first, split),
            Section("Learning curves", pictures=learning(first)),
            answers_section(first),
            data_section(first),
            configuration_section(first),
        ],
    )
    return write_page(page, Path(out) / REPORT)


def _headline(name: str, run: Run, split: str, number: int) -> Headline:
    scored = run.summary["splits"][split]
    note = f"95 % interval {interval_text(scored['interval'].get(METRIC))}"
    return Headline(f"{name}, C-index", decimal(scored["mean"][METRIC]), note, "accent" if number == 0 else "grey")


def _table(runs: Mapping[str, Run], split: str, ceiling: float) -> Table:
    names = [METRIC, "uno"]
    rows: list[list[str | Cell]] = []
    for name, run in runs.items():
        scored = run.summary["splits"][split]
        cells = [Cell(decimal(scored["mean"][m]), interval_text(scored["interval"][m])) for m in names]
        learned = [f"{row['midpoint']:,.0f} µm" for seed in run.all_seeds for row in seed.distances]
        rows.append([name, *cells, ", ".join(learned) or "–"])
    rows.append(["True hazard", Cell(decimal(ceiling), "the ceiling"), "", "–"])
    drawn = resampled_text({split: next(iter(runs.values())).summary["splits"][split]})
    columns = [Column("Model"), *(Column(task_metric(m), True) for m in names), Column("Learned distance", True)]
    return Table(columns, rows, note=f"Below each figure its 95 % bootstrap interval over the {drawn}; 0.5 is chance.")


def _dots(runs: Mapping[str, Run], split: str, ceiling: float) -> Picture:
    rows = []
    for number, (name, run) in enumerate(runs.items()):
        scored = run.summary["splits"][split]
        ends = scored["interval"][METRIC]
        known = None if None in ends else (float(ends[0]), float(ends[1]))  # too few events for one
        seeds = [row[METRIC] for row in scored.get("per_seed", [])]
        colour = GREY if number else ACCENT
        rows.append(Score(name, scored["mean"][METRIC], known, seeds, ceiling, colour))
    figure = figures.scores(rows, task_metric(METRIC), "ceiling")
    return picture(figure, "C-index of every model", "Dot: mean; bar: 95 % interval; tick: the true hazard.")

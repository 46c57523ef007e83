"""Where scores lie against annotations, as a section of a report."""

from __future__ import annotations

from pathlib import Path

from dasmil.report.page import Cell, Column, Section, Table
from dasmil.report.words import decimal, interval_text, plural
from dasmil.runs import Run, read_localisation
from dasmil.vocabulary import SCORES

MOST_ROWS = 200


def localisation_section(run: Run) -> Section:
    """AUROC, Dice and FROC of every score for the cohort, and of the contributions slide by slide; empty without."""
    title = "Do the scores lie where annotations are?"
    found = read_localisation(Path(run.path))
    if found is None:
        return Section(title)
    columns = [Column("Score"), Column("AUROC", True), Column("Dice", True), Column("FROC", True)]
    rows = [
        [
            SCORES[one["score"]].title if one["score"] in SCORES else one["score"],
            Cell(decimal(one["auroc"]), interval_text(one["auroc_interval"])),
            Cell(decimal(one["dice"]), interval_text(one["dice_interval"])),
            decimal(one["froc"]),
        ]
        for one in found["cohort"]
    ]
    first = found["cohort"][0]
    text = (
        f"{plural(first['annotated_slides'], 'slide')} with annotated tiles, {plural(first['lesions'], 'region')} "
        f"({', '.join(found['classes'])}), {plural(first['slides'], 'slide')} in all. AUROC: tiles at least half "
        "inside against all others, mean over slides with the 95 % interval over patients. Dice: of as many of the "
        "highest tiles as are annotated. FROC: mean share of regions found at 0.25 to 8 false detections per slide."
    )
    own = [row for row in found["slides"] if row["score"] == first["score"]]
    slides = [
        [row["slide"], row["set"], f"{row['tiles']:,}", f"{row['annotated']:,}", decimal(row["auroc"]),
         decimal(row["dice"])]
        for row in own[:MOST_ROWS]
    ]  # fmt: skip
    head = [Column("Slide"), Column("Set"), *(Column(c, True) for c in ("Tiles", "Annotated", "AUROC", "Dice"))]
    note = f"By {SCORES[first['score']].label}." if first["score"] in SCORES else ""
    if len(own) > MOST_ROWS:
        note += f" The first {MOST_ROWS} of {len(own):,} slides."
    return Section(title, text=[text], tables=[Table(columns, rows), Table(head, slides, note=note)])

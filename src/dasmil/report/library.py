"""The section about default training: which candidates were tried, which was selected, whether positions help."""

from __future__ import annotations

from dasmil.report.page import Cell, Column, Section, Table
from dasmil.runs import Run, read_library

ANCHOR = "candidates"


def library_section(run: Run) -> Section:
    """A table of all candidates with their out-of-fold loss; empty for runs of a single model."""
    title = "Which model was selected, and do positions help?"
    found = read_library(run)
    if found is None:
        return Section(title)
    columns = [Column("Candidate"), *(Column(name, True) for name in ("Uses positions", "Loss", "Ranking", "Selected"))]
    rows = [
        [
            Cell(c.title, bold=c.kept > 0),
            "yes" if c.spatial else "no",
            f"{c.loss:.3f}",
            f"{c.score:.3f}",
            f"{c.kept} of {found.models}" if found.models > 1 else ("yes" if c.kept else ""),
        ]
        for c in found.candidates
    ]
    missing = [c for c in found.candidates if c.models < found.models]
    note = (
        "Loss: out of fold, per training patient, as a share of a constant guess (below 1 is better than guessing). "
        "Ranking: how often two patients are ordered rightly (AUROC or C-index; 0.5 is chance). The simplest candidate "
        "within one standard error of the lowest loss is selected."
    )
    if missing:
        note += " " + "; ".join(f"{c.title}: tried in {c.models} of {found.models} models" for c in missing) + "."
    text = [found.kept_text, found.evidence_text, found.positions_text]
    return Section(title, text=[t for t in text if t], tables=[Table(columns, rows, note=note)], anchor=ANCHOR)

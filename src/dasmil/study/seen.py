"""What a run has seen: the bags that it was trained on and those it keeps locked, told by content and by patient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dasmil.data.checks import Finding, find_copies, plain_patient, refuse, strides_of
from dasmil.data.match import shortened
from dasmil.runs import Run, write_seen
from dasmil.study.notes import Note

if TYPE_CHECKING:
    from dasmil.data.cohort import Cohort
    from dasmil.study.rounds import Round

TRAINED, LOCKED = "trained on", "locked test set"
APART = 4.0
"""Instances of a run and of other bags for it lie apart by lengths that differ by less than this factor."""


def note_seen(out: Path, rounds: Sequence[Round]) -> None:
    """Keep with a run what tells its bags from others; nothing of bags in memory, which nobody looked at."""
    from dasmil.data.cohort import Cohort

    parts = [bags for part in rounds for bags in (part.train, part.val, *part.tests.values())]
    cohorts = [part for part in parts if isinstance(part, Cohort) and part.report.looked]
    if not cohorts:
        return
    looked = cohorts[0].report.looked
    locked = set(rounds[0].data.get("held_out", {}).get("test", ()))
    bags: dict[str, Any] = {}
    for name, row in looked.items():
        owner = row.get("patient")
        aside = name in locked or owner in locked  # bags of joined slides are named by their patient
        bags[name] = {"set": LOCKED if aside else TRAINED, "patient": owner, "content": row["content"]}
    rows = list(looked.values())
    strides = list(strides_of(rows).values())
    told = lambda what: sorted({row[what] for row in rows if row.get(what)})  # noqa: E731
    write_seen(out, {
        "encoder": told("encoder"), "encoder_sha256": told("encoder_sha256"),
        "stride_um": float(np.median(strides)) if strides else None, "bags": bags,
    })  # fmt: skip


def slides_of(entry: Any) -> list[str]:
    """The slides of a bag of a cohort, by name."""
    from dasmil.data.formats import slide_name

    return [slide_name(path) for path in entry.paths] or [entry.bag_id]


def check_alike(run: Run, cohort: Cohort, accepted: Sequence[str]) -> None:
    """Refuse bags of another encoder than those that a run was trained on, or with positions in another unit."""
    known = run.seen
    if known is None:
        return
    findings: list[Finding] = []
    for what in ("encoder", "encoder_sha256"):
        here = {row[what] for row in cohort.report.looked.values() if row.get(what)}
        if known[what] and (other := sorted(here - set(known[what]))):
            message = f"{what} of the bags is {shortened(other, 3)}, the run was trained on {shortened(known[what], 3)}"
            findings.append(Finding("error", "mixed encoders", f"{message}: extract them with the encoder of the run"))
    strides = strides_of(cohort.report.looked.values())
    if strides and (usual := known["stride_um"]):
        middle = float(np.median(list(strides.values())))
        if not usual / APART < middle < usual * APART:
            message = f"instances lie {middle:.3g} um apart, those of the run {usual:.3g} um: are the units the same?"
            findings.append(Finding("error", "mixed scales", message))
    refuse(findings, accepted)


def seen_before(run: Run, cohort: Cohort) -> dict[str, str]:
    """Bags of a cohort that a run has seen, with what it did with them: by their content, else by their patient."""
    known = run.seen
    if known is None:
        return {}
    contents = {f"bag {name}": row["content"] for name, row in cohort.report.looked.items()}
    copies = find_copies(contents, {name: bag["content"] for name, bag in known["bags"].items()})
    patients: dict[str, str] = {}
    for bag in known["bags"].values():
        if bag["patient"]:
            patients.setdefault(plain_patient(bag["patient"]), bag["set"])
    found: dict[str, str] = {}
    for entry in cohort.entries:
        same = {known["bags"][copies[f"bag {name}"]]["set"] for name in slides_of(entry) if f"bag {name}" in copies}
        if not same and entry.patient_id and (of := patients.get(plain_patient(entry.patient_id))):
            same = {of}
        if same:
            found[entry.bag_id] = TRAINED if TRAINED in same else LOCKED
    return found


def refuse_trained(seen: Mapping[str, str], cohort: Cohort, accepted: Sequence[str], note: Note) -> None:
    """Scores on bags that a run was trained on say nothing of others: stop, or where it is accepted, say so."""
    trained = [name for name, what in seen.items() if what == TRAINED]
    if not trained:
        return
    message = (
        f"{len(trained)} of {len(cohort)} bags, or their patients, are those that the run was trained on (for example "
        f"{shortened(trained, 3)}): scores on them say nothing about new patients; leave them out"
    )
    refuse([Finding("error", "seen", message)], accepted)
    note(f"Warning: {message}")

"""Flipping curves of a run: every bag by the model that held it out, as figures, a CSV and a page."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dasmil.attribution import explain
from dasmil.attribution.faithfulness import REMOVED, Faithfulness, FlippingCurves, flipping_curves, summarise
from dasmil.errors import InputError
from dasmil.files import replacing
from dasmil.models import read_model
from dasmil.report.faithfulness import write_faithfulness_page
from dasmil.runs import Run, speaker_for, speakers
from dasmil.study.explaining import make_folder
from dasmil.study.notes import Note, silent
from dasmil.study.reading import run_loader

BAGS = 50
"""Bags that are looked at unless told otherwise; each is scored some hundred times."""


@dataclass(frozen=True)
class RunFaithfulness:
    """curves: of every bag; cohort: the gap of every order of removal; held_out: no model was trained on its bags."""

    run: Run
    curves: Sequence[FlippingCurves]
    cohort: Sequence[Faithfulness]
    held_out: bool

    def write(self, folder: str | Path) -> list[Path]:
        """faithfulness.html and faithfulness.csv (a row for each bag, order and share removed)."""
        folder = make_folder(folder)
        page = write_faithfulness_page(folder / "faithfulness.html", self.run, self.curves, self.cohort, self.held_out)
        table = folder / "faithfulness.csv"
        with replacing(table) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["bag", "patient", "instances", "target", "logit", "order", "removed", "change"])
            for one in self.curves:
                for order, changes in one.changes.items():
                    for share, change in zip(REMOVED, changes, strict=True):
                        writer.writerow(
                            [one.bag_id, one.patient, one.instances, one.target, f"{one.logit:.6g}", order,
                             f"{share:g}", f"{change:.6g}"]
                        )  # fmt: skip
        return [page, table]


def faithfulness(
    run: str | Path,
    *,
    seed: int | None = None,
    limit: int | None = None,
    mnist_dir: Path | None = None,
    note: Note = silent,
) -> RunFaithfulness:
    """Remove instances in the order of their contributions and ask the model again, as `explain --faithfulness`.

    Each bag is explained by a model that did not train on it; where a run has no such bags, its training bags are
    taken. limit: at most so many bags (default 50).
    """
    stored, found = Run.read(run), speakers(Path(run), seed)
    names = [(name, speaker_for(found, name)) for name in dict.fromkeys(n for one in found for n in one.sets)]
    apart = [(name, speaker) for name, speaker in names if speaker.sets.get(name) != "train"]
    chosen = (apart or names)[: BAGS if limit is None else limit]
    if not chosen:
        raise InputError(f"{run} has scored no bags: there is nothing to explain")
    models: dict[Path, Any] = {}
    curves = []
    for number, (name, speaker) in enumerate(chosen, 1):
        note(f"{number} of {len(chosen)}: {name}")
        bag = run_loader(speaker.origin, mnist_dir)(speaker.sets[name], name)
        if speaker.model_file not in models:
            models[speaker.model_file] = read_model(speaker.model_file)
        model = models[speaker.model_file]
        explanation = explain(model, bag, target=1 if model.n_logits == 1 else None, top=0)
        curves.append(flipping_curves(model, bag, explanation, seed=number))
    return RunFaithfulness(stored, curves, summarise(curves), bool(apart))

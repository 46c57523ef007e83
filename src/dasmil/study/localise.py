"""The contributions of a run against annotations: every annotated bag, explained by the model that held it out."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dasmil.attribution import explain
from dasmil.attribution.localise import CohortScore, SlideScore, score_cohort, score_slide, scored_values
from dasmil.data.annotations import Annotations, annotations_by_slide, chosen_classes
from dasmil.data.labels import plain_slide
from dasmil.data.restrict import level0
from dasmil.errors import InputError
from dasmil.files import replacing
from dasmil.models import read_model
from dasmil.report import write_report
from dasmil.runs import Run, Speaker, speaker_for, speakers, write_localisation
from dasmil.study.notes import Note, silent
from dasmil.study.reading import run_loader
from dasmil.types import Bag, Explanation

COLUMNS = ("slide", "patient", "set", "score", "tiles", "annotated", "auroc", "dice")


@dataclass(frozen=True)
class Localisation:
    """Scores of every slide (with the set that it was in), and of the cohort, by the name of the score."""

    slides: Sequence[tuple[str, SlideScore]]
    cohort: Sequence[CohortScore]
    classes: Sequence[str]

    def record(self) -> dict[str, Any]:
        """As it is stored with the run."""
        return {
            "classes": list(self.classes),
            "cohort": [asdict(one) for one in self.cohort],
            "slides": [
                {"set": used, **{name: getattr(one, name) for name in COLUMNS if name != "set"}}
                for used, one in self.slides
            ],
        }


def localise(
    run: str | Path,
    annotations: str | Path,
    *,
    classes: Sequence[str] = (),
    seed: int | None = None,
    limit: int | None = None,
    mnist_dir: Path | None = None,
    note: Note = silent,
) -> Localisation:
    """Score the contributions and the attention of a run against annotations, as `dasmil explain --annotations`.

    Example: ``dasmil.localise("runs/mine", "annotations/").cohort[0].auroc``

    annotations: a folder of files named after the slides. classes: only these count; default all. Bags that the run has
    scored are taken, each explained by a model that did not train on it where there is one; bags without a file count
    for FROC by their false detections if their label is the lowest class, else they are left out. The result is kept
    with the run, and its report shows it.
    """
    known = annotations_by_slide(annotations)
    if classes:
        chosen_classes(list(known.values()), classes, "--annotation-class")
        known = {slide: one.of(classes) for slide, one in known.items()}
    stored, found = Run.read(run), speakers(Path(run), seed)
    names = _bags(stored, found, known)[:limit]
    if not any(plain_slide(name) in known for name, _ in names):
        raise InputError(
            f"none of the bags that {run} has scored has annotations in {annotations}: files are named after their "
            f"slide, such as {names[0][0] if names else 'slide1'}.geojson"
        )
    scores: dict[str, list[tuple[str, SlideScore]]] = {}
    models: dict[Path, Any] = {}
    for number, (name, speaker) in enumerate(names, 1):
        note(f"{number} of {len(names)}: {name}")
        bag = run_loader(speaker.origin, mnist_dir)(speaker.sets[name], name)
        model = models.setdefault(speaker.model_file, read_model(speaker.model_file))
        explanation = explain(model, bag, target=1 if model.n_logits == 1 else None)
        for one in score_bag(bag, explanation, known.get(plain_slide(name))):
            scores.setdefault(one.score, []).append((speaker.sets[name], one))
    cohort = [score_cohort([one for _, one in rows]) for rows in scores.values()]
    result = Localisation(
        [row for rows in scores.values() for row in rows], cohort,
        sorted({name for one in known.values() for name in one.names}),
    )  # fmt: skip
    write_localisation(Path(run), result.record())
    write_report(run)
    return result


def score_bag(bag: Bag, explanation: Explanation, annotations: Annotations | None) -> list[SlideScore]:
    """Every score of one explained bag against its annotations; None: a slide without any annotated tile."""
    centres, side = level0(bag)
    shares, lesions = np.zeros(len(bag)), []
    if annotations is not None:
        shares = annotations.shares(centres, side)
        regions = [region for region in annotations.regions if not region.excluded]
        cut = tuple(region for region in annotations.regions if region.excluded)
        lesions = [Annotations(annotations.path, (region, *cut)).shares(centres, side) for region in regions]
    patient = bag.patient_id or bag.bag_id
    return [
        score_slide(bag.bag_id, patient, name, values, shares, lesions, centres, side)
        for name, values in scored_values(explanation).items()
    ]


def write_table(path: Path, found: Localisation) -> Path:
    """One row for each slide and score."""
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(found.record()["slides"])
    return path


def _bags(run: Run, found: list[Speaker], known: dict[str, Annotations]) -> list[tuple[str, Speaker]]:
    """The bags to score, each with the model that speaks for it: held-out ones where there are any."""
    labels = _labels(run)
    chosen = []
    for name in dict.fromkeys(bag for speaker in found for bag in speaker.sets):
        speaker = speaker_for(found, name)
        if plain_slide(name) in known or labels.get(name) == 0:
            chosen.append((name, speaker))
    apart = [(name, speaker) for name, speaker in chosen if speaker.sets.get(name) != "train"]
    return apart if any(plain_slide(name) in known for name, _ in apart) else chosen


def _labels(run: Run) -> dict[str, int]:
    if run.task is not None:
        return {}
    return {
        name: int(label)
        for seed in run.all_seeds
        for part in seed.scored.values()
        for name, label in zip(part.bag_ids, part.labels, strict=True)
    }

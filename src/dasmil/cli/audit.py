"""`dasmil audit`: check the splits and predictions of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="audit", help="Check splits and predictions of another tool for leaks, and score them with intervals.")


@app.default
def audit(
    *,
    splits: Path,
    predictions: Path | None = None,
    slides: Path | None = None,
    slide_column: str | None = None,
    patient_column: str | None = None,
    site_column: str | None = None,
    name_column: str | None = None,
    label_column: str | None = None,
    score_column: str | None = None,
    class_column: str | None = None,
    positive: str | None = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Check splits and predictions of another tool for leaks, and score them again with intervals over patients.

    Example: dasmil audit --splits clam/splits/task --predictions clam/eval --slides labels.csv

    Reads CLAM's splits_0.csv, splits_1.csv, ..., k=all.tsv of Patho-Bench and MIL-Lab, STAMP's splits.json, torchmil's
    splits.csv, and tables with a column of slides and one of sets. Exit code 1 where something biases the figures.

    Parameters
    ----------
    splits
        File or folder of the splits.
    predictions
        Table of predictions, or a folder with one for each fold: slide, true label, score of the positive class, and
        perhaps the predicted class (CLAM: slide_id, Y, p_1, Y_hat).
    slides
        Table with the patient (and site) of every slide. TCGA barcodes need none.
    slide_column
        In --slides: the column with the slide.
    patient_column
        In --slides: the column with the patient.
    site_column
        In --slides: the column with the site (hospital, scanner).
    name_column
        In --predictions: the column with the slide or patient.
    label_column
        In --predictions: the column with the true label.
    score_column
        In --predictions: the column with the score of the positive class.
    class_column
        In --predictions: the column with the predicted class.
    positive
        The label that is positive (default: the later one in order).
    output
        Also write the findings to this CSV file.
    json
        Print the result as JSON.
    """
    import json as json_module
    import math

    from dasmil.data.given_splits import read_folds, read_predictions_of_others
    from dasmil.data.labels import read_slides
    from dasmil.files import finite
    from dasmil.study.audit import audit as check

    folds = read_folds(splits)
    columns = {"name": name_column, "label": label_column, "score": score_column, "class": class_column}
    scored = [] if predictions is None else read_predictions_of_others(predictions, positive, columns)
    patients: dict[str, str] = {}
    sites: dict[str, str] = {}
    if slides is not None:
        _, rows = read_slides(slides, slide_column=slide_column, patient_column=patient_column)
        patients = {row.of.slide: row.of.patient for row in rows if row.of.patient is not None}
        sites = {row.of.slide: row.cells[site_column] for row in rows} if site_column else {}
    found = check(folds, scored, patients=patients, sites=sites)
    if output is not None:
        found.write(output)
    if json:
        print(json_module.dumps(finite(found.record()), indent=2))
        return 0 if found.sound else 1
    print(f"{found.folds} folds, {found.slides} slides of {found.patients} patients")
    for one in found.findings:
        print(f"{one.level}: {one.fold}: {one.message}")
    if not found.findings:
        print("No leaks, duplicates or choices on test slides found.")
    if found.auroc:
        low, high = found.interval
        ends = f" (95 % interval over patients {low:.3f} to {high:.3f})" if math.isfinite(low) else ""
        print("AUROC " + ", ".join(f"{name} {value:.3f}" for name, value in found.auroc.items()))
        print(f"AUROC, mean over tables {found.mean:.3f}{ends}")
    return 0 if found.sound else 1

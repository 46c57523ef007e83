"""`dasmil demo --cells`: 100 real breast tumours, from a table of cells to a report and an explained image."""

from __future__ import annotations

import sys
import time
from pathlib import Path

FOLDS, FOLDS_OF_FEW = 4, 2
FEWEST = 20
"""With fewer images a fold has too few patients for default training."""
RUN = {"run": "default training"}
SOURCE = (
    "Data: Jackson, Fischer et al., Nature 578, 615 (2020), imaging mass cytometry; licence CC BY 4.0 (the table that "
    "it was taken from: MIT)."
)


def demo_cells(out: Path, seeds: int, images: int | None, json: bool) -> int:
    """Write the tables, cross-validate default training on them, and explain one image."""
    import json as json_module

    from dasmil.cli.demo import prepare_folder
    from dasmil.cli.demo_slides import median_positive
    from dasmil.cli.display import Display, say
    from dasmil.cli.training_display import print_run
    from dasmil.data.breast_imc import IMAGES, write_breast_cohort
    from dasmil.engine import EngineOptions
    from dasmil.errors import InputError
    from dasmil.runs import verdict
    from dasmil.study.explaining import explain_bag
    from dasmil.study.spec import CohortSpec
    from dasmil.study.training import cross_validate

    start = time.monotonic()
    images = IMAGES if images is None else images
    if not FEWEST <= images <= IMAGES:
        raise InputError(f"--bags is {images}, expected {FEWEST} to {IMAGES}: so many images have a grade")
    prepare_folder(out, RUN)
    cells, labels = write_breast_cohort(out / "cohort", images)
    say(f"{images} real breast tumours, one image of each patient: is it of grade 3, or of grade 1 or 2?")
    say(SOURCE)
    spec = CohortSpec(
        bags=cells, bag_column="image", x_column="x_um", y_column="y_um", unit="um", one_hot="type",
        labels=labels, label_column="grade", classes=["grade 1-2", "grade 3"], covariates=["age"],
    )  # fmt: skip
    try:
        folds = FOLDS if images == IMAGES else FOLDS_OF_FEW
        run = cross_validate(
            spec, out=out / "run", folds=folds, seeds=seeds, engine=EngineOptions(workers=2), note=say, watch=Display
        )
    except KeyboardInterrupt:
        print("Stopped. The demo starts anew when it is called again.", file=sys.stderr)
        return 130
    page = explain_bag(run.path, median_positive(run)).write(out / "explanation")[0]
    judged = verdict(run)
    if json:
        found = {"report": str(run.report), "explanation": str(page), "verdict": judged.as_json(), **run.summary}
        print(json_module.dumps(found, indent=2))
        return 0
    print_run(run)
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    print(f"Trained and explained in {minutes}:{seconds:02d} min. One image, cell by cell: {page}")
    print(f"All images in the viewer: dasmil view {run.path}")
    print(run.report)
    return 0

"""`dasmil explain RUN --annotations`: do the scores of a run lie where annotations are?"""

import json as json_module
import math
from pathlib import Path


def against_annotations(
    run: Path,
    folder: Path,
    classes: str | None,
    seed: int | None,
    limit: int | None,
    mnist_dir: Path | None,
    output: Path | None,
    json: bool,
) -> int:
    """Score a run against annotations and print the table of the cohort."""
    from dasmil.cli.display import say
    from dasmil.cli.explain_questions import print_table
    from dasmil.files import finite
    from dasmil.runs import Run
    from dasmil.study.localise import localise, write_table
    from dasmil.vocabulary import SCORES

    chosen = [name for part in (classes or "").split(",") if (name := part.strip())]
    found = localise(run, folder, classes=chosen, seed=seed, limit=limit, mnist_dir=mnist_dir, note=say)
    table = None if output is None else write_table(output / "localisation.csv", found)
    if json:
        print(json_module.dumps(finite(found.record()), indent=2))
        return 0

    def cell(value: float, ends: tuple[float, float] | None = None) -> str:
        if not math.isfinite(value):
            return "-"
        known = ends is not None and math.isfinite(ends[0])
        return f"{value:.3f}" + (f" [{ends[0]:.3f}, {ends[1]:.3f}]" if known and ends is not None else "")

    first = found.cohort[0]
    print(
        f"{first.annotated_slides} slides with annotated tiles ({', '.join(found.classes)}; {first.lesions} regions), "
        f"{first.slides} slides in all; AUROC and Dice are means over slides [95 % interval over patients]"
    )
    rows = [
        (
            SCORES[one.score].title,
            cell(one.auroc, one.auroc_interval),
            cell(one.dice, one.dice_interval),
            cell(one.froc),
        )
        for one in found.cohort
    ]
    print_table(("score", "AUROC", "Dice", "FROC"), rows)
    if table is not None:
        print(table)
    print(Run.read(run).report)
    return 0

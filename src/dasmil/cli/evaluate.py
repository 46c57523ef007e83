"""`dasmil evaluate`: score a trained run on labelled bags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="evaluate", help="Score a trained run on labelled bags.")


@app.default
def evaluate(
    run: Path,
    *,
    split: list[str] | None = None,
    bags: Path | None = None,
    labels: Path | None = None,
    mpp: str | None = None,
    tile_um: float | None = None,
    scale_table: Path | None = None,
    mnist_dir: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Score every seed of a run and their ensemble on labelled bags; thresholds are those chosen in training.

    The run's own locked test set then also stands in its report, unless the run is a cross-validation.

    Example: dasmil evaluate runs/collage --split test-large

    Parameters
    ----------
    run
        Run directory of dasmil train.
    split
        Sets of the built-in data that the run was trained on (default: its test sets).
    bags
        Instead: a folder of feature files, with --labels.
    labels
        CSV with slide and label for --bags.
    mpp
        Micrometres per level-0 pixel, where the files do not say.
    tile_um
        Edge of a tile in micrometres, where the files do not say.
    scale_table
        CSV with slide and any of mpp, tile_um, for slides that differ.
    mnist_dir
        Folder with the four MNIST idx files.
    json
        Print the results as JSON.
    """
    from dasmil.cli.sources import labelled_bags, run_splits
    from dasmil.cli.training_display import print_summary
    from dasmil.errors import InputError
    from dasmil.report import write_report
    from dasmil.train.apply import evaluate_run
    from dasmil.train.run_dir import StoredRun

    stored = StoredRun.read(run)
    if bags is not None:
        if labels is None:
            raise InputError(
                "--bags needs --labels, a CSV with slide and label; to predict without labels: dasmil predict"
            )
        sets = {"bags": labelled_bags(bags, labels, stored.config, mpp=mpp, tile_um=tile_um, scale_table=scale_table)}
    else:
        sets = run_splits(stored.config, split, mnist_dir, run)
    own = bags is None and "cohort" in stored.config["data"]
    summary = evaluate_run(stored, sets, keep=own)
    if own:
        write_report(run)
    if json:
        import json as json_module

        from dasmil.train.run_dir import finite

        print(json_module.dumps(finite(summary), indent=2))
    else:
        print_summary(summary, stored.classes)
    return 0

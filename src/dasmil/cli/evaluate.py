"""`dasmil evaluate`: score a trained run on labelled bags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from dasmil.cli.cohort_arguments import BagArguments, option_names

app = App(name="evaluate", help="Score a trained run on labelled bags.")


@app.default
def evaluate(
    run: Path,
    *,
    split: list[str] | None = None,
    cohort: BagArguments = BagArguments(),  # noqa: B008
    mnist_dir: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Score every seed of a run and their ensemble on labelled bags, at the thresholds chosen in training.

    Without --bags this opens the run's locked test set and adds its scores to the report (not for a cross-validation).

    With --bags and --labels it scores other bags. Columns, features and classes are read as in training, unless given
    here.

    Example: dasmil evaluate runs/collage --split test-large

    Example: dasmil evaluate runs/mine --bags features/ --labels clini.csv --slide-table slides.csv

    Parameters
    ----------
    run
        Run directory of dasmil train.
    split
        Sets of the data that the run was trained on (default: its test sets); not with --bags. test-large, 2,000
        clean bags, also for runs of the published protocol.
    mnist_dir
        Folder with the four MNIST idx files.
    json
        Print the results as JSON.
    """
    from dasmil.cli.display import code_of, say
    from dasmil.cli.training_display import print_summary, print_task_summary
    from dasmil.errors import InputError
    from dasmil.runs import Run
    from dasmil.study import apply

    stored = Run.read(run)
    if cohort.bags is None and cohort.given():  # opening the run's test set, which is counted, is not what was meant
        raise InputError(f"{option_names(cohort.given())} came without --bags, the bags to read with it: give both")
    bags = None if cohort.bags is None else cohort
    summary = apply.evaluate(stored, bags, split=split, mnist_dir=mnist_dir, note=say)
    if json:
        import json as json_module

        from dasmil.files import finite

        print(json_module.dumps(finite(summary), indent=2))
    else:
        if stored.task is None:
            print_summary(summary, stored.classes)
        else:
            print_task_summary(summary, stored.task.unit)
    return code_of("left_out" in summary)
